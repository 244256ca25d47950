/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "serve/audit_priv.h"
#include "wire/json.h"

#define TAIL	 ",\"hash\":\""
#define TAIL_LEN (sizeof(TAIL) - 1)
/* TAIL, the digits, quote and brace */
#define END_LEN (TAIL_LEN + HASH_SHA256_HEX + 2)

void audit_hash(const char *prev, const char *body, size_t len, char *hex)
{
	char text[HASH_SHA256_HEX + AUDIT_LINE_MAX + 1];

	memcpy(text, prev, HASH_SHA256_HEX);
	memcpy(text + HASH_SHA256_HEX, body, len);
	text[HASH_SHA256_HEX + len] = '}';
	hash_sha256(text, HASH_SHA256_HEX + len + 1, hex);
}

const char *audit_line(const char *text, size_t len, uint64_t *seq,
		       const char *prev, char *ret_hash)
{
	char hex[HASH_SHA256_HEX + 1];
	auto_json json_t *obj = NULL;
	const char *end, *is;
	int64_t n;

	if (len > AUDIT_LINE_MAX || len <= END_LEN)
		return "it is too long or too short";
	if (json_parse(text, len, &obj, NULL) < 0)
		return "it is not a JSON object";
	end = text + len - END_LEN;
	is = json_str(obj, "prev");
	n = json_int(obj, "seq", 0);
	if (memcmp(end, TAIL, TAIL_LEN) || n < 1 ||
	    strlen(is) != HASH_SHA256_HEX)
		return "it is no line of an audit log";
	audit_hash(is, text, (size_t)(end - text), hex);
	if (memcmp(end + TAIL_LEN, hex, HASH_SHA256_HEX))
		return "it was changed: its hash is another";
	if (prev && strcmp(is, prev))
		return "lines before it were changed, taken out or put in";
	if (*seq && *seq != (uint64_t)n)
		return "its seq does not follow";
	*seq = (uint64_t)n;
	memcpy(ret_hash, hex, sizeof(hex));
	return NULL;
}

/* One whole line; false: it is wrong. */
static bool check(struct audit_state *s, const char *text, size_t len)
{
	char hash[HASH_SHA256_HEX + 1];
	uint64_t seq = s->lines ? s->last + 1 : 0;

	s->why = audit_line(text, len, &seq, s->lines ? s->hash : NULL, hash);
	/* The first may go on from a log that is not here; not so a first. */
	if (!s->why && !s->lines && seq == 1)
		s->why = audit_line(text, len, &seq, AUDIT_GENESIS, hash);
	if (s->why) {
		s->bad_line = s->lines + 1;
		return false;
	}
	if (!s->first)
		s->first = seq;
	s->last = seq;
	s->lines++;
	memcpy(s->hash, hash, sizeof(s->hash));
	return true;
}

int audit_verify(int fd, struct audit_state *s, struct err *e)
{
	static const size_t room = 4 * (AUDIT_LINE_MAX + 1);
	auto_free char *buf = malloc(room);
	size_t have = 0, at;
	ssize_t n;
	char *nl;

	if (!buf)
		return err_sys(e, ENOMEM, "audit log");
	for (;;) {
		do
			n = read(fd, buf + have, room - have);
		while (n < 0 && errno == EINTR);
		if (n < 0)
			return err_sys(e, errno, "read the audit log");
		have += (size_t)n;
		for (at = 0; (nl = memchr(buf + at, '\n', have - at));
		     at = (size_t)(nl - buf) + 1)
			if (!check(s, buf + at, (size_t)(nl - (buf + at))))
				return 0;
		have -= at;
		memmove(buf, buf + at, have);
		if (n == 0)
			break;
		if (have > AUDIT_LINE_MAX) {
			s->bad_line = s->lines + 1;
			s->why = "it is too long or too short";
			return 0;
		}
	}
	s->torn = have;
	return 0;
}
