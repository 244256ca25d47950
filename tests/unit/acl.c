/* SPDX-License-Identifier: Apache-2.0 */
/* ACLs as text and as the kernel's value, and what else of a tar header an
 * import needs and an extraction does not. */
#include <errno.h>
#include <sys/sysmacros.h>

#include "archive.h"
#include "img/oci.h"
#include "wire/acl.h"

/* clang-format off */
static const struct {
	const char *text, *again;
	int r;
} acls[] = {
	{"", "", 0},
	{"user::rw-,group::r--,other::---", "user::rw-,group::r--,other::---", 0},
	{"u::rwx\ng::r-x\no::x\n", "user::rwx,group::r-x,other::--x", 0},
	{"user::rw-,user:12:r--,group::r--,mask::r--,other::r--",
	 "user::rw-,user:12:r--,group::r--,mask::r--,other::r--", 0},
	{"other::---,mask::rwx,group:9:--x,group:7:r--,group::r--,user:joe:rw-:5,user::rwx",
	 "user::rwx,user:5:rw-,group::r--,group:7:r--,group:9:--x,mask::rwx,other::---", 0},
	{"user::rw- , user:root:r-- # a comment\n group::r--,mask:r--,other:---",
	 "user::rw-,user:0:r--,group::r--,mask::r--,other::---", 0},
	{"user::rw-,user:joe:r--,group::r--,mask::r--,other::---", NULL, -ENOENT},
	{"user::rw-,user:12:r--,group::r--,other::---", NULL, -EINVAL},
	{"user::rw-,group::r--", NULL, -EINVAL},
	{"user::rw-,user::rw-,group::r--,other::---", NULL, -EINVAL},
	{"user::rw-,user:1:r--,user:1:r--,group::r--,mask::r--,other::---", NULL, -EINVAL},
	{"user::rq-,group::r--,other::---", NULL, -EINVAL},
	{"user::rw-,group::r--,other:5:---", NULL, -EINVAL},
	{"user:::rw-", NULL, -EINVAL},
	{"user", NULL, -EINVAL},
	{":", NULL, -EINVAL},
	{"user::rw-,user:4294967295:r--,group::r--,mask::r--,other::---", NULL, -ENOENT},
};

static const struct {
	const char *ref, *full; /* NULL: none */
} refs[] = {
	{"python", "docker.io/library/python:latest"},
	{"python:3.12", "docker.io/library/python:3.12"},
	{"a/b", "docker.io/a/b:latest"},
	{"localhost/b", "localhost/b:latest"},
	{"localhost:5000/b:1", "localhost:5000/b:1"},
	{"quay.io/a/b:2", "quay.io/a/b:2"},
	{"b@sha256:00", "docker.io/library/b@sha256:00"},
	{"", NULL}, {"-a", NULL}, {"/a", NULL}, {"a/", NULL}, {"a//b", NULL},
	{"a b", NULL}, {"a;b", NULL}, {"a\nb", NULL},
};
/* clang-format on */

static void check_acls(void)
{
	for (size_t i = 0; i < array_len(acls); i++) {
		auto_buf struct buf value = {0};
		auto_buf struct buf text = {0};
		int r = acl_from_text(acls[i].text, strlen(acls[i].text),
				      &value);

		ok(r == acls[i].r, "ACL %zu: %d", i, r);
		if (r < 0 || value.len == 0)
			continue;
		ok(acl_check(value.data, value.len) == 0, "is valid");
		ok(acl_to_text(value.data, value.len, &text) == 0, "as text");
		is_str(text.data, acls[i].again, "is the same");
	}
}

static void check_values(void)
{
	auto_buf struct buf v = {0};
	static const char text[] = "user::rw-,user:1:r--,group::r--,mask::r--,"
				   "other::---";

	if (acl_from_text(text, strlen(text), &v) < 0)
		return;
	ok(!acl_is_mode(v.data, v.len), "a named entry is more than a mode");
	is_int(acl_check(v.data, v.len - 1), -EINVAL, "a value cut short");
	is_int(acl_check(v.data, 3), -EINVAL, "nearly nothing");
	is_int(acl_check(NULL, 0), -EINVAL, "nothing");
	v.data[0] = 1;
	is_int(acl_check(v.data, v.len), -EINVAL, "another version");
	v.data[0] = 2;
	v.data[4] = 3;
	is_int(acl_check(v.data, v.len), -EINVAL, "a tag of two bits");
}

static void check_refs(void)
{
	for (size_t i = 0; i < array_len(refs); i++) {
		char full[320] = "";
		int r = oci_ref_normal(refs[i].ref, full, sizeof(full));

		ok(r == (refs[i].full ? 0 : -EINVAL), "reference %zu: %d", i,
		   r);
		if (r == 0)
			is_str(full, refs[i].full, "in full");
	}
}

static const struct tar_xattr *xattr(const struct tar_entry *en,
				     const char *name)
{
	for (size_t i = 0; i < en->nxattrs; i++)
		if (!strcmp(en->xattrs[i].name, name))
			return &en->xattrs[i];
	return NULL;
}

static void next_entry(struct tar_reader *r, const struct tar_entry **en)
{
	struct err e = {0};

	if (!ok(tar_next(r, en, &e) == 1, "an entry"))
		printf("# %s\n", e.msg);
}

/* All attributes come out of the reader, in their own names. */
static void check_reader(void)
{
	struct in in = {.step = 100};
	const struct tar_entry *en = NULL;
	const struct tar_xattr *x;
	struct tar_reader r;

	PAX(&in.b, "31 SCHILY.xattr.security.a=v\0w\n"
		   "32 SCHILY.xattr.user.a%3Db%25=x\n"
		   "32 SCHILY.xattr.user.a%3Db%25=y\n");
	entry(&in.b, '0', "a", "", "data");
	PAX(&in.b, "74 SCHILY.acl.access=user::rw-,user:7:r--,group::r--,"
		   "mask::r--,other::---\n"
		   "54 SCHILY.acl.default=user::rwx,group::r--,other::---\n");
	entry(&in.b, '5', "d", "", NULL);
	PAX(&in.b, "22 SCHILY.devmajor=25\n26 SCHILY.devminor=300000\n");
	entry(&in.b, '3', "c", "", NULL);
	end(&in.b);
	if (tar_reader_init(&r, from_buf, &in, NULL) < 0)
		return;
	next_entry(&r, &en);
	is_int((long long)en->offset, 0, "where it begins");
	x = xattr(en, "security.a");
	ok(x && x->len == 3 && !memcmp(x->value, "v\0w", 3), "any name space");
	x = xattr(en, "user.a=b%");
	ok(x && x->len == 1 && !memcmp(x->value, "y", 1),
	   "an escaped name, the last value");
	next_entry(&r, &en);
	x = xattr(en, ACL_XATTR_ACCESS);
	ok(x && acl_check(x->value, x->len) == 0, "an ACL");
	x = xattr(en, ACL_XATTR_DEFAULT);
	ok(x && acl_check(x->value, x->len) == 0,
	   "a default ACL, though it is but a mode");
	next_entry(&r, &en);
	ok(en->rdev == makedev(25, 300000), "a device number");
	is_int((long long)en->offset % 512, 0, "where it begins");
	tar_reader_done(&r);
	buf_done(&in.b);
}

int main(void)
{
	check_acls();
	check_values();
	check_refs();
	check_reader();
	return tap_done();
}
