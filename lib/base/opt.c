/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "base/opt.h"

const struct opt *opt_row(struct opt_table t, size_t i)
{
	return (const struct opt *)((const char *)t.rows + i * t.stride);
}

static int find_long(struct opt_table t, const char *name, size_t len)
{
	for (size_t i = 0; i < t.n; i++) {
		const struct opt *o = opt_row(t, i);

		if (o->name && strlen(o->name) == len &&
		    !memcmp(o->name, name, len))
			return (int)i;
		if (o->alias && strlen(o->alias) == len &&
		    !memcmp(o->alias, name, len))
			return (int)i;
	}
	return -1;
}

static int unknown_long(struct opt_table t, const char *word, size_t len,
			struct err *e)
{
	char name[64];
	struct near near = {.word = name};

	snprintf(name, sizeof(name), "%.*s", (int)len, word);
	for (size_t i = 0; i < t.n; i++) {
		const struct opt *o = opt_row(t, i);

		if (o->help) /* not what is ours alone */
			near_try(&near, o->name);
		near_try(&near, o->alias);
	}
	return err_set(e, -EINVAL, "usage", "unknown option --%.*s%s%s%s",
		       (int)len, word, near.best ? ": is it --" : "",
		       near.best ? near.best : "", near.best ? "?" : "");
}

static int find_letter(struct opt_table t, char letter)
{
	for (size_t i = 0; i < t.n; i++)
		if (opt_row(t, i)->letter == letter)
			return (int)i;
	return -1;
}

static int take_long(struct opt_parser *p, const char *word, int *ret_row,
		     const char **ret_arg, struct err *e)
{
	const char *eq = strchr(word, '=');
	size_t len = eq ? (size_t)(eq - word) : strlen(word);
	int row = find_long(p->table, word, len);

	if (row < 0)
		return unknown_long(p->table, word, len, e);
	*ret_row = row;
	if (!opt_row(p->table, (size_t)row)->metavar) {
		if (eq)
			return err_set(e, -EINVAL, "usage",
				       "--%.*s takes no value", (int)len, word);
		return 0;
	}
	if (eq)
		*ret_arg = eq + 1;
	else if (p->i < p->argc)
		*ret_arg = p->argv[p->i++];
	else
		return err_set(e, -EINVAL, "usage", "--%s needs a value", word);
	return 0;
}

static int take_letter(struct opt_parser *p, int *ret_row, const char **ret_arg,
		       struct err *e)
{
	char letter = *p->rest++;
	int row = find_letter(p->table, letter);

	if (row < 0)
		return err_set(e, -EINVAL, "usage", "unknown option -%c",
			       letter);
	*ret_row = row;
	if (!opt_row(p->table, (size_t)row)->metavar)
		return 0;
	if (*p->rest) {
		*ret_arg = p->rest;
		p->rest = NULL;
	} else if (p->i < p->argc) {
		*ret_arg = p->argv[p->i++];
	} else {
		return err_set(e, -EINVAL, "usage", "-%c needs a value",
			       letter);
	}
	return 0;
}

int opt_next(struct opt_parser *p, int *ret_row, const char **ret_arg,
	     struct err *e)
{
	const char *word;
	int r;

	*ret_arg = NULL;
	if (p->rest && *p->rest) {
		r = take_letter(p, ret_row, ret_arg, e);
		return r < 0 ? r : *ret_row;
	}
	p->rest = NULL;
	if (p->i >= p->argc)
		return OPT_END;
	word = p->argv[p->i];
	if (!strcmp(word, "--")) {
		p->i++;
		return OPT_END;
	}
	if (word[0] != '-' || word[1] == '\0') {
		if (p->stop_at_word)
			return OPT_END;
		p->i++;
		*ret_arg = word;
		return OPT_WORD;
	}
	p->i++;
	if (word[1] == '-') {
		r = take_long(p, word + 2, ret_row, ret_arg, e);
	} else {
		p->rest = word + 1;
		r = take_letter(p, ret_row, ret_arg, e);
	}
	return r < 0 ? r : *ret_row;
}

static void help_row(int fd, const struct opt *o)
{
	char left[64], letter[8] = "    ";

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	snprintf(left, sizeof(left), "%s--%s%s%s", letter,
		 o->alias ? o->alias : o->name, o->metavar ? " " : "",
		 o->metavar ? o->metavar : "");
	dprintf(fd, "  %-30s %s\n", left, o->help);
}

void opt_help(int fd, const char *usage, struct opt_table t)
{
	dprintf(fd, "%s\n", usage);
	for (size_t i = 0; i < t.n; i++) {
		const struct opt *o = opt_row(t, i);

		if (o->help && (o->name || o->letter))
			help_row(fd, o);
	}
}

int opt_each(struct opt_parser *p, opt_flag_fn *flag, opt_word_fn *word,
	     void *arg, struct err *e)
{
	const char *value = NULL;
	int kind, row = 0, r = 0;

	while (r >= 0) {
		kind = opt_next(p, &row, &value, e);
		if (kind == OPT_END)
			break;
		if (kind == OPT_WORD)
			r = word(arg, value, e);
		else
			r = kind < 0 ? kind : flag(arg, row, value, e);
	}
	for (; r >= 0 && p->i < p->argc; p->i++)
		r = word(arg, p->argv[p->i], e);
	return r < 0 ? r : 0;
}
