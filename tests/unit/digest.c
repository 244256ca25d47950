/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "img/name.h"
#include "img/sha256.h"

#define ABC  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define NONE "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void check_digests(void)
{
	char hex[DIGEST_HEX + 1];
	struct digest d, d2;

	is_int(digest_parse(ABC, &d), 0, "hex digits");
	is_str(digest_hex(&d, hex), ABC, "and back");
	is_int(digest_parse("sha256:" ABC, &d2), 0, "with the algorithm");
	ok(digest_eq(&d, &d2), "the same");
	is_int(digest_parse("sha256:sha256:" ABC, &d), -EINVAL, "twice");
	is_int(digest_parse("", &d), -EINVAL, "nothing");
	is_int(digest_parse(ABC "0", &d), -EINVAL, "a digit too many");
	is_int(digest_parse(&ABC[1], &d), -EINVAL, "one too few");
	is_int(digest_parse("sha512:" ABC, &d), -EINVAL, "another algorithm");
	hex[10] = 'A';
	is_int(digest_parse(hex, &d), -EINVAL, "upper case");
	hex[10] = '/';
	is_int(digest_parse(hex, &d), -EINVAL, "a slash");
}

static void check_sha256(void)
{
	char path[] = "/tmp/dsec-digest-XXXXXX", hex[DIGEST_HEX + 1];
	auto_sha256 struct sha256 *h = sha256_new();
	auto_close int fd = mkostemp(path, O_CLOEXEC);
	struct digest d;

	if (!h || fd < 0)
		abort();
	unlink(path);
	sha256_end(h, &d);
	is_str(digest_hex(&d, hex), NONE, "of nothing");
	sha256_add(h, "a", 1);
	sha256_add(h, "bc", 2);
	sha256_end(h, &d);
	is_str(digest_hex(&d, hex), ABC, "of three bytes, in pieces");
	sha256_add(h, "abc", 3);
	sha256_end(h, &d);
	is_str(digest_hex(&d, hex), ABC, "once more, as new");
	is_int(sha256_of("abc", 3, &d), 0, "at once");
	is_str(digest_hex(&d, hex), ABC, "the same");
	is_int(fd_write_all(fd, "abc", 3, NULL), 0, "a file");
	is_int(sha256_fd(fd, &d, NULL), 0, "of a file, wherever it stands");
	is_str(digest_hex(&d, hex), ABC, "the same again");
	is_int(sha256_fd(-1, &d, NULL), -EBADF, "of no file");
}

/* clang-format off */
static const struct {
	const char *in, *out; /* NULL: refused */
} names[] = {
	{"root/py:3.12", "root/py:3.12"},
	{"root/py", "root/py:latest"},
	{"root/rl/py:1", "root/rl/py:1"},
	{"0/a_b-c.d:1_2", "0/a_b-c.d:1_2"},
	{"root/py:1.json", "root/py:1.json"},
	{"sha256:" ABC, "sha256:" ABC},
	{ABC, "sha256:" ABC},
	{"py:3.12", NULL},	 {"host", NULL},	{"", NULL},
	{"/", NULL},		 {"root/", NULL},	{"/py:1", NULL},
	{"root//py:1", NULL},	 {"root/py:", NULL},	{"root/:1", NULL},
	{"root/py:1:2", NULL},	 {"Root/py:1", NULL},	{"root/Py:1", NULL},
	{"root/py:A", NULL},	 {"root/../py:1", NULL}, {"../py:1", NULL},
	{"root/..:1", NULL},	 {"root/py:..", NULL},	{"root/.py:1", NULL},
	{"root/a..b:1", NULL},	 {"root/-a:1", NULL},	{"root/a b:1", NULL},
	{"root/py:1/2", NULL},	 {"root/py:1\n", NULL}, {"ro\xc3\xb6t/py:1", NULL},
	{"root/py@sha256:" ABC, NULL},
	{"sha256:abc", NULL},	 {"root/py.json:1", NULL},
	{"a.json/py:1", NULL},	 {"root/py:1.json/x", NULL},
};
/* clang-format on */

static void check_names(void)
{
	char buf[IMG_NAME_MAX + 1];
	struct img_name n;
	struct err e;

	for (size_t i = 0; i < array_len(names); i++) {
		e = (struct err){0};
		if (img_name_parse(names[i].in, &n, &e) == 0) {
			is_str(img_name_str(&n, buf), names[i].out,
			       names[i].in);
			continue;
		}
		ok(!names[i].out && e.r == -EINVAL &&
			   !strcmp(e.code, "bad_value"),
		   "'%s' is refused", names[i].in);
	}
}

/* "a/" times n, then "n:" and v times "v" */
static const char *long_name(char *buf, size_t segments, size_t version)
{
	char *p = buf;

	for (size_t i = 0; i < segments; i++, p += 2)
		memcpy(p, "a/", 2);
	memcpy(p, "n:", 2);
	memset(p + 2, 'v', version);
	p[2 + version] = '\0';
	return buf;
}

static void check_lengths(void)
{
	char in[1024], out[IMG_NAME_MAX + 1];
	struct img_name n;

	is_int(img_name_parse(long_name(in, 1, 128), &n, NULL), 0,
	       "a segment of 128");
	is_int(img_name_parse(long_name(in, 1, 129), &n, NULL), -EINVAL,
	       "of 129");
	is_int(img_name_parse(long_name(in, 63, 128), &n, NULL), 0,
	       "256 bytes in all");
	is_str(img_name_str(&n, out), in, "are written out whole");
	is_int(img_name_parse(long_name(in, 64, 127), &n, NULL), -EINVAL,
	       "257 bytes in all");
	is_int(img_name_parse(long_name(in, 400, 1), &n, NULL), -EINVAL,
	       "many segments");
}

int main(void)
{
	check_digests();
	check_sha256();
	check_names();
	check_lengths();
	return tap_done();
}
