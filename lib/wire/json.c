/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "wire/json.h"

static const char b64[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The kernel gave this process 16 random bytes: no need to ask for more. */
static void seed_once(void)
{
	static bool seeded;
	const void *random;
	size_t seed;

	if (seeded)
		return;
	seeded = true;
	random = (const void *)getauxval(AT_RANDOM);
	if (!random)
		return;
	memcpy(&seed, random, sizeof(seed));
	json_object_seed(seed ? seed : 1);
}

int json_parse(const char *text, size_t len, json_t **ret_obj, struct err *e)
{
	json_error_t je;
	json_t *obj;

	if (len > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a record of %zu bytes (%d at most)", len,
			       JSON_LINE_MAX);
	seed_once();
	obj = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (!obj)
		return err_set(e, -EBADMSG, "bad_record",
			       "not a JSON record: %s (column %d)", je.text,
			       je.column);
	if (!json_is_object(obj)) {
		json_decref(obj);
		return err_set(e, -EBADMSG, "bad_record", "not a JSON object");
	}
	*ret_obj = obj;
	return 0;
}

int json_pack_or(json_t **ret, struct err *e, const char *fmt, ...)
{
	json_error_t je;
	va_list ap;
	json_t *j;

	seed_once();
	va_start(ap, fmt);
	j = json_vpack_ex(&je, 0, fmt, ap);
	va_end(ap);
	if (!j)
		return err_set(e, -ENOMEM, "no_memory", "make a record: %s",
			       je.text);
	*ret = j;
	return 0;
}

const char *json_str(const json_t *obj, const char *key)
{
	const char *s = json_string_value(json_object_get(obj, key));

	return s ? s : "";
}

int64_t json_int(const json_t *obj, const char *key, int64_t dflt)
{
	const json_t *j = json_object_get(obj, key);

	return json_is_integer(j) ? json_integer_value(j) : dflt;
}

bool json_flag(const json_t *obj, const char *key)
{
	return json_is_true(json_object_get(obj, key));
}

const char *json_unknown(const json_t *obj, const char *const *keys, size_t n)
{
	const char *key;
	json_t *v;
	size_t i;

	json_object_foreach((json_t *)(uintptr_t)obj, key, v) {
		for (i = 0; i < n && strcmp(key, keys[i]); i++)
			;
		if (i == n)
			return key;
	}
	return NULL;
}

static json_t *b64_encode(const unsigned char *d, size_t len)
{
	auto_free char *out = malloc(len / 3 * 4 + 5);
	size_t n = 0;

	if (!out)
		return NULL;
	for (size_t i = 0; i < len; i += 3) {
		unsigned v = (unsigned)d[i] << 16;

		if (i + 1 < len)
			v |= (unsigned)d[i + 1] << 8;
		if (i + 2 < len)
			v |= d[i + 2];
		out[n++] = b64[v >> 18];
		out[n++] = b64[v >> 12 & 63];
		out[n++] = i + 1 < len ? b64[v >> 6 & 63] : '=';
		out[n++] = i + 2 < len ? b64[v & 63] : '=';
	}
	return json_stringn(out, n);
}

int json_set_b64(json_t *obj, const char *key, const void *data, size_t len)
{
	json_t *j = b64_encode(data, len);
	char name[64];

	if (!j)
		return -ENOMEM;
	snprintf(name, sizeof(name), "%s_b64", key);
	return json_object_set_new(obj, name, j) < 0 ? -ENOMEM : 0;
}

int json_set_bytes(json_t *obj, const char *key, const void *data, size_t len)
{
	json_t *j = NULL;

	if (len == 0)
		j = json_string("");
	else if (!memchr(data, 0, len))
		j = json_stringn(data, len);
	if (j)
		return json_object_set_new(obj, key, j) < 0 ? -ENOMEM : 0;
	return json_set_b64(obj, key, data, len);
}

static int b64_value(char c)
{
	const char *p = c ? strchr(b64, c) : NULL;

	return p ? (int)(p - b64) : -1;
}

/* Strict: padded, no white space, no stray bits. */
static int b64_decode(const char *s, size_t len, char *out, size_t *ret_len)
{
	size_t n = 0, pad = 0;

	if (len % 4)
		return -EBADMSG;
	while (pad < 2 && pad < len && s[len - 1 - pad] == '=')
		pad++;
	for (size_t i = 0; i < len; i += 4) {
		unsigned v = 0;

		for (size_t k = 0; k < 4; k++) {
			int d = i + k >= len - pad ? 0 : b64_value(s[i + k]);

			if (d < 0)
				return -EBADMSG;
			v = v << 6 | (unsigned)d;
		}
		/* What padding leaves over must be zero: one text per value. */
		if (i + 4 == len && (v & ((1u << 8 * pad) - 1)))
			return -EBADMSG;
		out[n++] = (char)(v >> 16);
		out[n++] = (char)(v >> 8);
		out[n++] = (char)v;
	}
	*ret_len = n - pad;
	return 0;
}

int json_get_bytes(const json_t *obj, const char *key, char **ret_data,
		   size_t *ret_len, struct err *e)
{
	const json_t *plain = json_object_get(obj, key), *coded;
	auto_free char *out = NULL;
	char name[64];
	size_t len;

	snprintf(name, sizeof(name), "%s_b64", key);
	coded = json_object_get(obj, name);
	if (!plain && !coded)
		return 0;
	if (plain && coded)
		return err_set(e, -EBADMSG, "bad_value",
			       "both '%s' and '%s' are given", key, name);
	if (!json_is_string(plain ? plain : coded))
		return err_set(e, -EBADMSG, "bad_value", "'%s' is not a string",
			       plain ? key : name);
	len = json_string_length(plain ? plain : coded);
	out = malloc(len + 4);
	if (!out)
		return err_sys(e, ENOMEM, "'%s'", key);
	if (plain) {
		memcpy(out, json_string_value(plain), len + 1);
	} else if (b64_decode(json_string_value(coded), len, out, &len) < 0) {
		return err_set(e, -EBADMSG, "bad_value", "'%s' is not base64",
			       name);
	}
	*ret_data = steal_ptr(out);
	*ret_len = len;
	return 1;
}

int json_read_file(int dirfd, const char *path, json_t **ret_obj, struct err *e)
{
	auto_free char *text = NULL;
	size_t len;
	int r;

	r = fd_read_file(dirfd, path, JSON_LINE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	r = json_parse(text, len, ret_obj, e);
	return r < 0 ? err_wrap(e, r, "'%s'", path) : 0;
}

int json_write_file(int dirfd, const char *path, const json_t *obj,
		    unsigned flags, struct err *e)
{
	auto_free char *text = json_dumps(obj, JSON_COMPACT);
	size_t len;

	if (!text)
		return err_sys(e, ENOMEM, "write '%s'", path);
	len = strlen(text);
	/* What could not be read again. */
	if (len >= JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "'%s' would be over %d bytes", path,
			       JSON_LINE_MAX);
	text[len] = '\n'; /* in place of the NUL: a line, like all records */
	return fd_replace(dirfd, path, text, len + 1, flags, e);
}

int json_memfd(struct err *e)
{
	int fd = memfd_create("json", MFD_CLOEXEC);

	return fd < 0 ? err_sys(e, errno, "a file in memory") : fd;
}

int json_to_memfd(int fd, const json_t *obj, struct err *e)
{
	auto_free char *text = json_dumps(obj, JSON_COMPACT);
	int r;

	if (!text)
		return err_sys(e, ENOMEM, "a file in memory");
	r = fd_write_all(fd, text, strlen(text), e);
	if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
		r = err_sys(e, errno, "a file in memory");
	return r;
}
