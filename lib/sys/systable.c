/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "sys/systable.h"

static const struct {
	const char *name;
	int errnum;
} actions[] = {
	{"allow", 0},
	{"EPERM", EPERM},
	{"EACCES", EACCES},
	{"EINVAL", EINVAL},
	{"ENOSYS", ENOSYS},
	{"EAFNOSUPPORT", EAFNOSUPPORT},
	{"EOPNOTSUPP", EOPNOTSUPP},
};

static int parse_action(const char *word)
{
	for (size_t i = 0; i < array_len(actions); i++)
		if (!strcmp(word, actions[i].name))
			return actions[i].errnum;
	return -1;
}

/* A number of C in full: 0x12, 12. */
static int parse_u32(const char *s, const char **ret_end, uint32_t *ret)
{
	unsigned long long v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EBADMSG;
	errno = 0;
	v = strtoull(s, &end, 0);
	if (errno || v > UINT32_MAX)
		return -EBADMSG;
	*ret_end = end;
	*ret = (uint32_t)v;
	return 0;
}

/* argN==VALUE, argN&MASK==VALUE */
static int parse_cond(const char *s, struct systable_cond *ret)
{
	if (strncmp(s, "arg", 3) != 0 || s[3] < '0' || s[3] > '5')
		return -EBADMSG;
	ret->arg = (unsigned)(s[3] - '0');
	ret->mask = UINT32_MAX;
	s += 4;
	if (*s == '&' && parse_u32(s + 1, &s, &ret->mask) < 0)
		return -EBADMSG;
	if (strncmp(s, "==", 2) != 0 || parse_u32(s + 2, &s, &ret->value) < 0)
		return -EBADMSG;
	/* A bit outside the mask could never compare equal. */
	return *s || (ret->value & ~ret->mask) ? -EBADMSG : 0;
}

/* ACTION [if COND...]; ${words} is consumed by strtok_r. */
static int parse_clause(char *words, struct systable_clause *ret)
{
	char *save, *word = strtok_r(words, " \t", &save);

	memset(ret, 0, sizeof(*ret));
	ret->action = word ? parse_action(word) : -1;
	if (ret->action < 0)
		return -EBADMSG;
	word = strtok_r(NULL, " \t", &save);
	if (!word)
		return 0;
	if (strcmp(word, "if"))
		return -EBADMSG;
	while ((word = strtok_r(NULL, " \t", &save))) {
		if (ret->nconds == SYSTABLE_CONDS_MAX ||
		    parse_cond(word, &ret->conds[ret->nconds]) < 0)
			return -EBADMSG;
		ret->nconds++;
	}
	return ret->nconds ? 0 : -EBADMSG;
}

/* NAME[@NUMBER] */
static int parse_name(char *word, struct systable_rule *ret)
{
	const char *end;
	uint32_t nr;
	char *at;

	memset(ret, 0, sizeof(*ret));
	ret->nr = -1;
	at = strchr(word, '@');
	if (at) {
		*at = '\0';
		if (parse_u32(at + 1, &end, &nr) < 0 || *end || nr > 4095)
			return -EBADMSG;
		ret->nr = (int)nr;
	}
	if (!*word || strlen(word) > SYSTABLE_NAME_MAX)
		return -EBADMSG;
	memcpy(ret->name, word, strlen(word) + 1);
	return 0;
}

static struct systable_rule *find(const struct systable *t, const char *name)
{
	for (size_t i = 0; i < t->nrules; i++)
		if (!strcmp(t->rules[i].name, name))
			return &t->rules[i];
	return NULL;
}

static bool is_closed(const struct systable_rule *r)
{
	return r->nclauses && r->clauses[r->nclauses - 1].nconds == 0;
}

static int add_clause(struct systable_rule *r, char *words, struct err *e)
{
	if (is_closed(r) || r->nclauses == SYSTABLE_CLAUSES_MAX)
		return err_set(e, -EBADMSG, "bad_record",
			       "%s: cannot be reached", r->name);
	if (!r->clauses)
		r->clauses = calloc(SYSTABLE_CLAUSES_MAX, sizeof(*r->clauses));
	if (!r->clauses)
		return err_sys(e, ENOMEM, "table of system calls");
	if (parse_clause(words, &r->clauses[r->nclauses]) < 0)
		return err_set(e, -EBADMSG, "bad_record",
			       "%s: not ACTION [if COND...]", r->name);
	r->nclauses++;
	return 0;
}

static int parse_line(struct systable *t, char *line, struct err *e)
{
	struct systable_rule rule, *last;
	char *name, *save;

	line[strcspn(line, "#")] = '\0';
	name = strtok_r(line, " \t", &save);
	if (!name)
		return 0;
	if (parse_name(name, &rule) < 0)
		return err_set(e, -EBADMSG, "bad_record", "not NAME[@NUMBER]");
	last = t->nrules ? &t->rules[t->nrules - 1] : NULL;
	if (last && !strcmp(last->name, rule.name))
		return add_clause(last, save, e);
	if (last && !is_closed(last))
		return err_set(e, -EBADMSG, "bad_record",
			       "%s: its last line has a condition", last->name);
	if (find(t, rule.name))
		return err_set(e, -EBADMSG, "bad_record", "%s comes back",
			       rule.name);
	if (t->nrules == SYSTABLE_RULES_MAX)
		return err_set(e, -EBADMSG, "bad_record", "too many calls");
	t->rules[t->nrules] = rule;
	return add_clause(&t->rules[t->nrules++], save, e);
}

int systable_parse(const char *text, const char *where, struct systable *ret,
		   struct err *e)
{
	auto_free char *copy = strdup(text);
	struct systable t = {calloc(SYSTABLE_RULES_MAX, sizeof(*t.rules)), 0};
	char *line = copy, *next;
	unsigned n = 0;
	int r = 0;

	if (!copy || !t.rules) {
		systable_done(&t);
		return err_sys(e, ENOMEM, "table of system calls");
	}
	for (; r == 0 && line; line = next) {
		n++;
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		r = parse_line(&t, line, e);
	}
	if (r == 0 && (!t.nrules || !is_closed(&t.rules[t.nrules - 1])))
		r = err_set(e, -EBADMSG, "bad_record", "ends too early");
	if (r < 0) {
		systable_done(&t);
		return err_wrap(e, r, "%s:%u", where, n);
	}
	*ret = t;
	return 0;
}

void systable_done(struct systable *t)
{
	for (size_t i = 0; i < t->nrules; i++)
		free(t->rules[i].clauses);
	free(t->rules);
	t->rules = NULL;
	t->nrules = 0;
}

int systable_change(struct systable *t, const char *name, size_t n,
		    const char *const *lines, struct err *e)
{
	struct systable_rule *rule = find(t, name);
	int r;

	if (!rule)
		return err_set(e, -EBADMSG, "bad_record",
			       "%s is not in the table", name);
	rule->nclauses = 0;
	for (size_t i = 0; i < n; i++) {
		auto_free char *copy = strdup(lines[i]);

		if (!copy)
			return err_sys(e, ENOMEM, "table of system calls");
		r = add_clause(rule, copy, e);
		if (r < 0)
			return r;
	}
	if (!is_closed(rule))
		return err_set(e, -EBADMSG, "bad_record",
			       "%s: its last line has a condition", name);
	return 0;
}

static bool clause_holds(const struct systable_clause *c, const __u64 *args)
{
	for (unsigned i = 0; i < c->nconds; i++)
		if (((uint32_t)args[c->conds[i].arg] & c->conds[i].mask) !=
		    c->conds[i].value)
			return false;
	return true;
}

int systable_decide(const struct systable *t, int nr, const __u64 *args)
{
	const struct systable_rule *r;

	for (size_t i = 0; i < t->nrules; i++) {
		r = &t->rules[i];
		if (r->nr != nr)
			continue;
		for (unsigned k = 0; k < r->nclauses; k++)
			if (clause_holds(&r->clauses[k], args))
				return r->clauses[k].action;
	}
	return ENOSYS;
}
