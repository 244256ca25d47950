/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "wire/acl.h"
#include "wire/tar_priv.h"

struct value {
	const char *s;
	size_t len;
};

bool tar_digits(const char *s, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	if (len == 0 || len > 19)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s[i] - '0');
	}
	*ret = v;
	return v <= INT64_MAX;
}

bool tar_add_run(struct tar_reader *r, uint64_t off, uint64_t len)
{
	struct tar_run run = {off, len};

	if (r->runs.len / sizeof(run) >= TAR_RUNS_MAX)
		return false;
	return buf_add(&r->runs, &run, sizeof(run)) == 0;
}

static bool set_name(struct buf *b, struct value v, bool *has)
{
	b->len = 0;
	*has = v.len > 0;
	return !memchr(v.s, 0, v.len) && buf_add(b, v.s, v.len) == 0;
}

static bool set_id(struct value v, int64_t *ret, bool *has)
{
	uint64_t u;

	*has = v.len > 0;
	if (!*has)
		return true;
	if (!tar_digits(v.s, v.len, &u))
		return false;
	*ret = (int64_t)u;
	return true;
}

static bool set_size(struct value v, uint64_t *ret, bool *has)
{
	*has = v.len > 0;
	return !*has || tar_digits(v.s, v.len, ret);
}

/* "-1.5" is a second and a half before 1970. */
static bool set_time(struct value v, struct timespec *ret, bool *has)
{
	const char *dot = memchr(v.s, '.', v.len);
	bool minus = v.len > 0 && *v.s == '-';
	size_t whole = dot ? (size_t)(dot - v.s) : v.len;
	long ns = 0, unit = 100000000;
	uint64_t sec;

	*has = v.len > 0;
	if (!*has)
		return true;
	if (!tar_digits(v.s + minus, whole - minus, &sec))
		return false;
	for (size_t i = whole + 1; i < v.len; i++, unit /= 10) {
		if (v.s[i] < '0' || v.s[i] > '9')
			return false;
		ns += (v.s[i] - '0') * unit;
	}
	ret->tv_sec = minus ? -(time_t)sec : (time_t)sec;
	ret->tv_nsec = ns;
	if (minus && ns > 0) {
		ret->tv_sec--;
		ret->tv_nsec = 1000000000 - ns;
	}
	return true;
}

static bool set_map(struct tar_reader *r, struct value v)
{
	uint64_t pair[2];
	unsigned have = 0;

	r->runs.len = 0;
	for (size_t i = 0; i < v.len;) {
		const char *comma = memchr(v.s + i, ',', v.len - i);
		size_t n = comma ? (size_t)(comma - v.s) - i : v.len - i;

		if (!tar_digits(v.s + i, n, &pair[have++]))
			return false;
		if (have == 2 && !tar_add_run(r, pair[0], pair[1]))
			return false;
		have %= 2;
		i += n + 1;
	}
	return have == 0;
}

static bool set_sparse(struct tar_reader *r, const char *key, struct value v,
		       struct tar_pax *p)
{
	struct tar_run *last;
	uint64_t n = 0;

	if (!strcmp(key, "name")) {
		p->sparse_name = true;
		return set_name(&r->path, v, &p->has_path);
	}
	if (!strcmp(key, "map")) {
		p->map_in_header = true;
		return set_map(r, v);
	}
	if (!tar_digits(v.s, v.len, &n))
		return false;
	if (!strcmp(key, "major")) {
		p->major = n > 9 ? 9 : (int)n;
	} else if (!strcmp(key, "size") || !strcmp(key, "realsize")) {
		p->real_size = n;
		p->has_real_size = true;
	} else if (!strcmp(key, "offset")) {
		p->map_in_header = true;
		return tar_add_run(r, n, 0);
	} else if (!strcmp(key, "numbytes")) {
		if (r->runs.len == 0)
			return false;
		last = (void *)(r->runs.data + r->runs.len - sizeof(*last));
		last->len = n;
	}
	return true;
}

/* GNU tar writes the two characters a record cannot have in its key so. */
static void unescape(char *name)
{
	char *out = name;

	for (const char *in = name; *in; in++, out++) {
		*out = *in;
		if (!strncmp(in, "%3D", 3) || !strncmp(in, "%25", 3)) {
			*out = in[1] == '3' ? '=' : '%';
			in += 2;
		}
	}
	*out = '\0';
}

static bool add_xattr(struct tar_reader *r, const char *name, struct value v)
{
	struct tar_entry *en = &r->entry;

	for (size_t i = 0; i < en->nxattrs; i++) {
		if (!strcmp(en->xattrs[i].name, name)) {
			en->xattrs[i] = (struct tar_xattr){name, v.s, v.len};
			return true;
		}
	}
	if (en->nxattrs == TAR_XATTRS_MAX)
		return false;
	en->xattrs[en->nxattrs++] = (struct tar_xattr){name, v.s, v.len};
	return true;
}

static bool set_xattr(struct tar_reader *r, char *name, struct value v)
{
	unescape(name);
	return !*name || add_xattr(r, name, v);
}

static bool set_acl(struct tar_reader *r, bool access, struct value v)
{
	static const char *const names[] = {ACL_XATTR_ACCESS,
					    ACL_XATTR_DEFAULT};
	struct buf *b = &r->acl[!access];
	int rc;

	b->len = 0;
	rc = acl_from_text(v.s, v.len, b);
	if (rc == -ENOMEM)
		return false;
	if (rc < 0)
		r->entry.bad_acl =
			rc == -ENOENT ? "its ACL has a name without the number"
				      : "a damaged ACL";
	if (rc < 0 || b->len == 0 || (access && acl_is_mode(b->data, b->len)))
		return true;
	return add_xattr(r, names[!access], (struct value){b->data, b->len});
}

static bool set_schily(struct tar_reader *r, char *key, struct value v,
		       struct tar_pax *p)
{
	if (!strncmp(key, "xattr.", 6))
		return set_xattr(r, key + 6, v);
	if (!strcmp(key, "acl.access") || !strcmp(key, "acl.default"))
		return set_acl(r, key[4] == 'a', v);
	if (!strcmp(key, "devmajor"))
		return set_id(v, &p->devmajor, &p->has_devmajor);
	if (!strcmp(key, "devminor"))
		return set_id(v, &p->devminor, &p->has_devminor);
	return true;
}

static bool apply(struct tar_reader *r, char *key, struct value v, bool local,
		  struct tar_pax *p)
{
	if (!strcmp(key, "path"))
		return p->sparse_name || set_name(&r->path, v, &p->has_path);
	if (!strcmp(key, "linkpath"))
		return set_name(&r->link, v, &p->has_link);
	if (!strcmp(key, "size"))
		return set_size(v, &p->size, &p->has_size);
	if (!strcmp(key, "uid"))
		return set_id(v, &p->uid, &p->has_uid);
	if (!strcmp(key, "gid"))
		return set_id(v, &p->gid, &p->has_gid);
	if (!strcmp(key, "mtime"))
		return set_time(v, &p->mtime, &p->has_mtime);
	if (!local)
		return true;
	if (!strncmp(key, "GNU.sparse.", 11))
		return set_sparse(r, key + 11, v, p);
	if (!strncmp(key, "SCHILY.", 7))
		return set_schily(r, key + 7, v, p);
	return true;
}

/* A record is "LENGTH KEY=VALUE\n", its length counting itself. */
static size_t record(char *text, size_t len, char **ret_key,
		     struct value *ret_value)
{
	char *space = memchr(text, ' ', len < 20 ? len : 20), *eq;
	uint64_t n;

	if (!space || !tar_digits(text, (size_t)(space - text), &n))
		return 0;
	if (n > len || text + n <= space + 2 || text[n - 1] != '\n')
		return 0;
	eq = memchr(space + 1, '=', (size_t)(text + n - space) - 2);
	if (!eq || memchr(space + 1, 0, (size_t)(eq - space) - 1))
		return 0;
	*ret_key = space + 1;
	*ret_value = (struct value){eq + 1, (size_t)(text + n - eq) - 2};
	return (size_t)n;
}

int tar_pax_parse(struct tar_reader *r, char *text, size_t len, bool local,
		  struct tar_pax *p, struct err *e)
{
	struct value v;
	char *key;
	size_t n;

	for (; len > 0; text += n, len -= n) {
		bool good;

		n = record(text, len, &key, &v);
		if (n == 0) {
			r->failed = true;
			return err_set(e, -EBADMSG, "bad_value",
				       "damaged extended header before offset "
				       "%llu",
				       (unsigned long long)r->offset);
		}
		/* xattr names stay where they are, so they end in NUL. */
		*(char *)(uintptr_t)(v.s - 1) = '\0';
		good = apply(r, key, v, local, p);
		if (!local)
			*(char *)(uintptr_t)(v.s - 1) = '=';
		if (!good)
			p->bad = "a damaged field in its extended header";
	}
	return 0;
}
