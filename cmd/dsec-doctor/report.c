/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"
#include "wire/record.h"

static const char *const parts[] = {"kernel", "cgroup", "limits",
				    "node",   "pool",	"dead"};
static const char *const severities[] = {"info", "warning", "error"};

const char *part_name(unsigned part)
{
	for (size_t i = 0; i < array_len(parts); i++)
		if (part == 1U << i)
			return parts[i];
	return "all";
}

unsigned part_of(const char *word)
{
	for (size_t i = 0; i < array_len(parts); i++)
		if (!strcmp(word, parts[i]))
			return 1U << i;
	return 0;
}

void d_feature(struct doctor *d, const char *name, bool on)
{
	json_object_set_new(d->features, name, json_boolean(on));
}

void d_word(struct doctor *d, const char *name, const char *word)
{
	json_object_set_new(d->features, name, json_string(word));
}

void d_value(struct doctor *d, const char *name, int64_t v)
{
	json_object_set_new(d->values, name, json_integer(v));
}

void d_text(struct doctor *d, const char *name, const char *text)
{
	json_object_set_new(d->values, name, json_string(text));
}

void d_finding(struct doctor *d, const char *check, enum severity sev,
	       const char *fix, const char *why, ...)
{
	char text[1024];
	va_list ap;
	json_t *f;

	va_start(ap, why);
	vsnprintf(text, sizeof(text), why, ap);
	va_end(ap);
	f = json_pack("{s:s, s:s, s:s}", "check", check, "severity",
		      severities[sev], "why", text);
	if (f && fix)
		json_object_set_new(f, "fix", json_string(fix));
	json_array_append_new(d->findings, f);
	if (sev > d->worst)
		d->worst = sev;
}

void d_fixed(struct doctor *d, const char *what, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, what);
	vsnprintf(text, sizeof(text), what, ap);
	va_end(ap);
	json_array_append_new(d->fixed, json_string(text));
}

int d_child(probe_fn *fn, void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		return errno;
	if (pid == 0)
		_exit(fn(arg));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errno;
	/* A kernel that kills for asking is one that cannot. */
	return WIFEXITED(status) ? WEXITSTATUS(status) : ENOSYS;
}

static void print_object(const char *title, const json_t *obj)
{
	json_t *all = (json_t *)(uintptr_t)obj;
	const char *key;
	json_t *v;

	if (json_object_size(obj) == 0)
		return;
	printf("%s\n", title);
	json_object_foreach(all, key, v) {
		if (json_is_integer(v))
			printf("  %-28s %lld\n", key,
			       (long long)json_integer_value(v));
		else if (json_is_string(v))
			printf("  %-28s %s\n", key, json_string_value(v));
		else
			printf("  %-28s %s\n", key,
			       json_is_true(v) ? "yes" : "no");
	}
}

static void print_people(const struct doctor *d, bool ok)
{
	json_t *v;
	size_t i;

	json_array_foreach(d->fixed, i, v) {
		printf("done: %s\n", json_string_value(v));
	}
	print_object("This machine can:", d->features);
	print_object("It has:", d->values);
	json_array_foreach(d->findings, i, v) {
		printf("%s: %s: %s\n", json_str(v, "severity"),
		       json_str(v, "check"), json_str(v, "why"));
		if (*json_str(v, "fix"))
			printf("    %s\n", json_str(v, "fix"));
	}
	printf("%s\n", ok ? "fit" : "not fit: see the errors above");
}

int report(const struct doctor *d, bool ok, struct err *e)
{
	auto_json json_t *rec = NULL;

	if (!d->json) {
		print_people(d, ok);
		return 0;
	}
	rec = json_pack("{s:b, s:O, s:O, s:O}", "ok", ok, "features",
			d->features, "values", d->values, "findings",
			d->findings);
	if (!rec)
		return err_sys(e, ENOMEM, "report");
	if (d->mounts)
		json_object_set(rec, "mounts", d->mounts);
	if (json_array_size(d->fixed) > 0)
		json_object_set(rec, "fixed", d->fixed);
	if (!ok)
		json_object_set_new(
			rec, "error",
			json_pack("{s:s, s:s, s:b}", "code", "configuration",
				  "message",
				  "the node is not fit: see findings", "infra",
				  1));
	return record_write(STDOUT_FILENO, rec, e);
}
