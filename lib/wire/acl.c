/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/acl.h"

#define ACL_VERSION 2
#define NO_ID	    UINT32_MAX

enum tag {
	USER_OBJ = 0x01,
	USER = 0x02,
	GROUP_OBJ = 0x04,
	GROUP = 0x08,
	MASK = 0x10,
	OTHER = 0x20,
};

/* An entry as the attribute has it after its 4 bytes of version. */
struct raw {
	uint16_t tag, perm;
	uint32_t id;
};

struct field {
	const char *s;
	size_t len;
};

static bool field_is(struct field f, const char *word)
{
	return f.len == strlen(word) && !memcmp(f.s, word, f.len);
}

/* Up to the next ':' of ${rest}, which moves behind it. */
static struct field next_field(struct field *rest)
{
	const char *colon = memchr(rest->s, ':', rest->len);
	struct field f = *rest;

	if (colon) {
		f.len = (size_t)(colon - f.s);
		rest->s += f.len + 1;
		rest->len -= f.len + 1;
	} else {
		rest->s += rest->len;
		rest->len = 0;
	}
	return f;
}

static bool number(struct field f, uint32_t *ret)
{
	uint64_t v = 0;

	if (f.len == 0 || f.len > 10)
		return false;
	for (size_t i = 0; i < f.len; i++) {
		if (f.s[i] < '0' || f.s[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(f.s[i] - '0');
	}
	*ret = (uint32_t)v;
	return v < NO_ID;
}

static int parse_perm(struct field f, uint16_t *ret)
{
	*ret = 0;
	if (f.len == 0)
		return -EINVAL;
	for (size_t i = 0; i < f.len; i++) {
		switch (f.s[i]) {
		case 'r':
			*ret |= 4;
			break;
		case 'w':
			*ret |= 2;
			break;
		case 'x':
			*ret |= 1;
			break;
		case '-':
			break;
		default:
			return -EINVAL;
		}
	}
	return 0;
}

static int parse_tag(struct field tag, bool named, uint16_t *ret)
{
	if (field_is(tag, "user") || field_is(tag, "u"))
		*ret = named ? USER : USER_OBJ;
	else if (field_is(tag, "group") || field_is(tag, "g"))
		*ret = named ? GROUP : GROUP_OBJ;
	else if (!named && (field_is(tag, "mask") || field_is(tag, "m")))
		*ret = MASK;
	else if (!named && (field_is(tag, "other") || field_is(tag, "o")))
		*ret = OTHER;
	else
		return -EINVAL;
	return 0;
}

/* "user:joe:r-x:1000" */
static int parse_entry(struct field line, struct raw *ret)
{
	struct field tag = next_field(&line), who = next_field(&line);
	struct field perm = next_field(&line);

	/* "mask:r-x" and "other:r-x" are said so, too. */
	if (perm.len == 0 && line.len == 0 &&
	    (*tag.s == 'm' || *tag.s == 'o')) {
		perm = who;
		who.len = 0;
	}
	ret->id = NO_ID;
	if (parse_tag(tag, who.len > 0, &ret->tag) < 0 ||
	    parse_perm(perm, &ret->perm) < 0)
		return -EINVAL;
	if (who.len == 0 || number(line, &ret->id) || number(who, &ret->id))
		return 0;
	if (!field_is(who, "root"))
		return -ENOENT;
	ret->id = 0;
	return 0;
}

/* Without what may stand around and behind an entry: blanks, a comment. */
static struct field trimmed(const char *s, size_t len)
{
	const char *hash = memchr(s, '#', len);

	if (hash)
		len = (size_t)(hash - s);
	while (len > 0 && (*s == ' ' || *s == '\t')) {
		s++;
		len--;
	}
	while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t'))
		len--;
	return (struct field){s, len};
}

static int by_tag(const void *pa, const void *pb)
{
	const struct raw *a = pa, *b = pb;

	if (a->tag != b->tag)
		return a->tag < b->tag ? -1 : 1;
	return a->id == b->id ? 0 : a->id < b->id ? -1 : 1;
}

/* What the kernel wants: each of the three once, a mask if there are names. */
static int check(const struct raw *a, size_t n)
{
	unsigned count[OTHER + 1] = {0};

	for (size_t i = 0; i < n; i++) {
		if (a[i].perm > 7 || a[i].tag > OTHER || !a[i].tag ||
		    a[i].tag & (a[i].tag - 1))
			return -EINVAL;
		if (i && by_tag(&a[i - 1], &a[i]) >= 0)
			return -EINVAL;
		if ((a[i].tag == USER || a[i].tag == GROUP) && a[i].id == NO_ID)
			return -EINVAL;
		count[a[i].tag]++;
	}
	if (count[USER_OBJ] != 1 || count[GROUP_OBJ] != 1 ||
	    count[OTHER] != 1 || count[MASK] > 1)
		return -EINVAL;
	return (count[USER] || count[GROUP]) && !count[MASK] ? -EINVAL : 0;
}

static int add_raw(const struct raw *a, size_t n, struct buf *ret)
{
	uint32_t version = htole32(ACL_VERSION);
	size_t was = ret->len;
	int r = buf_add(ret, &version, sizeof(version));

	for (size_t i = 0; i < n && r == 0; i++) {
		struct raw le = {htole16(a[i].tag), htole16(a[i].perm),
				 htole32(a[i].id)};

		r = buf_add(ret, &le, sizeof(le));
	}
	if (r < 0)
		ret->len = was;
	return r;
}

int acl_from_text(const char *text, size_t len, struct buf *ret)
{
	struct raw a[ACL_ENTRIES_MAX];
	size_t n = 0;
	int r;

	for (size_t at = 0, end; at < len; at = end + 1) {
		struct field line;

		for (end = at;
		     end < len && text[end] != ',' && text[end] != '\n';)
			end++;
		line = trimmed(text + at, end - at);
		if (line.len == 0)
			continue;
		if (n == ACL_ENTRIES_MAX)
			return -EINVAL;
		r = parse_entry(line, &a[n++]);
		if (r < 0)
			return r;
	}
	if (n == 0)
		return 0;
	qsort(a, n, sizeof(*a), by_tag);
	r = check(a, n);
	return r < 0 ? r : add_raw(a, n, ret);
}

/* The entries of a value; their number, or -EINVAL. */
static int parse_value(const void *value, size_t len, struct raw *a)
{
	uint32_t version;
	size_t n = (len - sizeof(version)) / sizeof(*a);

	if (len < sizeof(version) || n > ACL_ENTRIES_MAX ||
	    (len - sizeof(version)) % sizeof(*a))
		return -EINVAL;
	memcpy(&version, value, sizeof(version));
	if (le32toh(version) != ACL_VERSION)
		return -EINVAL;
	memcpy(a, (const char *)value + sizeof(version), n * sizeof(*a));
	for (size_t i = 0; i < n; i++)
		a[i] = (struct raw){le16toh(a[i].tag), le16toh(a[i].perm),
				    le32toh(a[i].id)};
	return check(a, n) < 0 ? -EINVAL : (int)n;
}

int acl_check(const void *value, size_t len)
{
	struct raw a[ACL_ENTRIES_MAX];
	int n = parse_value(value, len, a);

	return n < 0 ? n : 0;
}

bool acl_is_mode(const void *value, size_t len)
{
	(void)value;
	return len == sizeof(uint32_t) + 3 * sizeof(struct raw);
}

static const char *tag_name(uint16_t tag)
{
	switch (tag) {
	case USER_OBJ:
	case USER:
		return "user";
	case GROUP_OBJ:
	case GROUP:
		return "group";
	case MASK:
		return "mask";
	default:
		return "other";
	}
}

int acl_to_text(const void *value, size_t len, struct buf *ret)
{
	struct raw a[ACL_ENTRIES_MAX];
	size_t was = ret->len;
	int n = parse_value(value, len, a), r = 0;

	for (int i = 0; i < n && r == 0; i++) {
		char id[12] = "";

		if (a[i].tag == USER || a[i].tag == GROUP)
			snprintf(id, sizeof(id), "%u", a[i].id);
		r = buf_addf(ret, "%s%s:%s:%c%c%c", i ? "," : "",
			     tag_name(a[i].tag), id, a[i].perm & 4 ? 'r' : '-',
			     a[i].perm & 2 ? 'w' : '-',
			     a[i].perm & 1 ? 'x' : '-');
	}
	if (n >= 0 && r == 0)
		return 0;
	ret->len = was;
	return n < 0 ? n : r;
}
