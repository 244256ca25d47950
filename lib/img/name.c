/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "img/name.h"

#define SEGMENT_MAX 128

static bool alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool img_segment_ok(const char *s, size_t len)
{
	if (len < 1 || len > SEGMENT_MAX || !alnum(s[0]))
		return false;
	for (size_t i = 1; i < len; i++) {
		if (!alnum(s[i]) && s[i] != '.' && s[i] != '_' && s[i] != '-')
			return false;
		if (s[i] == '.' && s[i - 1] == '.')
			return false;
	}
	return true;
}

/* Projects and names are directories where versions are files. */
static bool dir_segment_ok(const char *s, size_t len)
{
	if (len >= 5 && !memcmp(s + len - 5, ".json", 5))
		return false;
	return img_segment_ok(s, len);
}

static bool project_ok(const char *s, size_t len)
{
	const char *slash;

	while ((slash = memchr(s, '/', len))) {
		size_t n = (size_t)(slash - s);

		if (!dir_segment_ok(s, n))
			return false;
		s += n + 1;
		len -= n + 1;
	}
	return dir_segment_ok(s, len);
}

static int bad_name(struct err *e, const char *s, const char *why)
{
	return err_set(e, -EINVAL, "bad_value",
		       "'%.200s' is no name of an image (%s): "
		       "PROJECT/NAME:VERSION as in root/py:3.12, or "
		       "sha256:DIGEST",
		       s, why);
}

static int parse_digest(const char *s, struct img_name *ret, struct err *e)
{
	struct img_name n = {.by_digest = true};

	if (digest_parse(s, &n.digest) < 0)
		return bad_name(e, s,
				!strncmp(s, "sha256:", 7)
					? "not 64 lower-case hex digits"
					: "no project");
	*ret = n;
	return 0;
}

int img_name_parse(const char *s, struct img_name *ret, struct err *e)
{
	const char *slash = strrchr(s, '/'), *name, *colon, *version;
	struct img_name n = {.by_digest = false};
	size_t name_len;

	if (!slash)
		return parse_digest(s, ret, e);
	name = slash + 1;
	colon = strchr(name, ':');
	version = colon ? colon + 1 : "latest";
	name_len = colon ? (size_t)(colon - name) : strlen(name);
	/* "/", ":" and a version that was not written count as well. */
	if ((size_t)(name - s) + name_len + 1 + strlen(version) > IMG_NAME_MAX)
		return bad_name(e, s, "too long");
	if (!project_ok(s, (size_t)(slash - s)))
		return bad_name(e, s, "its project");
	if (!dir_segment_ok(name, name_len))
		return bad_name(e, s, "its name");
	if (!img_segment_ok(version, strlen(version)))
		return bad_name(e, s, "its version");
	memcpy(n.project, s, (size_t)(slash - s));
	memcpy(n.name, name, name_len);
	memcpy(n.version, version, strlen(version));
	*ret = n;
	return 0;
}

char *img_name_str(const struct img_name *n, char *buf)
{
	char hex[DIGEST_HEX + 1];
	int len;

	if (n->by_digest)
		len = snprintf(buf, IMG_NAME_MAX + 1, "sha256:%s",
			       digest_hex(&n->digest, hex));
	else
		len = snprintf(buf, IMG_NAME_MAX + 1, "%s/%s:%s", n->project,
			       n->name, n->version);
	assert(len <= IMG_NAME_MAX); /* img_name_parse() took no longer one */
	return buf;
}
