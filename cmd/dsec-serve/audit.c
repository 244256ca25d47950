/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "serve.h"
#include "serve/audit.h"
#include "wire/exit.h"
#include "wire/record.h"

static int tell(const char *file, const struct audit_state *s, struct err *e)
{
	auto_json json_t *rec = NULL, *req = NULL;
	struct err why = {0};
	int r;

	if (s->bad_line) {
		err_set(&why, -EBADMSG, "audit_damaged",
			"'%s': line %llu of the log: %s", file,
			(unsigned long long)s->bad_line, s->why);
		rec = record_error(NULL, &why);
	} else {
		rec = record_ok(NULL);
	}
	r = json_pack_or(&req, e, "{s:s, s:I, s:I, s:I, s:I, s:s}", "file",
			 file, "lines", (json_int_t)s->lines, "first",
			 (json_int_t)s->first, "last", (json_int_t)s->last,
			 "torn", (json_int_t)s->torn, "hash", s->hash);
	if (r < 0)
		return r;
	if (!rec || json_object_update_missing(rec, req) < 0)
		return err_sys(e, ENOMEM, "answer");
	return record_write(STDOUT_FILENO, rec, e);
}

void audit_moved(struct audit *a)
{
	struct err e = {0};
	int r = a ? audit_reopen(a, &e) : -EEXIST;

	if (r == 0)
		log_info("the audit log goes on in a new file");
	else if (r != -EEXIST)
		log_err(&e);
}

/* The files in their order: one that was moved away before the one that took
 * its place.  Only the last may end in the middle of a line. */
int verb_audit(const struct args *a, struct err *e)
{
	struct audit_state s = {0};
	int r;

	if (strcmp(a->words[0], "verify"))
		return err_set(e, -EINVAL, "usage",
			       "dsec-serve audit verify FILE...");
	for (size_t i = 1; i < a->nwords; i++) {
		auto_close int fd = open(a->words[i],
					 O_RDONLY | O_CLOEXEC | O_NOCTTY);

		if (fd < 0)
			return err_sys(e, errno, "open '%s'", a->words[i]);
		if (s.torn) {
			s.bad_line = s.lines + 1;
			s.why = "a log before it ends in the middle of a line";
		} else {
			r = audit_verify(fd, &s, e);
			if (r < 0)
				return err_wrap(e, r, "'%s'", a->words[i]);
		}
		r = tell(a->words[i], &s, e);
		if (r < 0)
			return r;
		if (s.bad_line)
			return EXIT_NO;
	}
	return EXIT_OK;
}
