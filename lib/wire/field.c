/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/near.h"
#include "wire/field.h"

static const struct field common[] = {
	{.key = "deadline_ms", .type = FIELD_MS, .min = 1},
	{.key = "key", .type = FIELD_STR, .min = 1, .max = 128},
	{.key = "in", .type = FIELD_OBJ},
};

struct suffix {
	const char *text;
	double factor;
};

static const struct suffix mb_suffixes[] = {
	{"", 1},  {"M", 1},    {"G", 1024}, {"T", 1024 * 1024},
	{"m", 1}, {"g", 1024}, {"MiB", 1},  {"GiB", 1024},
};
static const struct suffix s_suffixes[] = {
	{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400},
};
static const struct suffix ms_suffixes[] = {
	{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000},
};

/*
 * The end of a plain decimal ("12", "0.5") at the start of ${arg}, NULL if
 * there is none: no blank, exponent, hexadecimal, "nan" or "inf", all of which
 * strtod() takes.  A sign is taken where ${sign} is.
 */
static const char *decimal_end(const char *arg, bool sign)
{
	size_t n;

	arg += sign && *arg == '-';
	n = strspn(arg, "0123456789");
	if (n == 0)
		return NULL;
	arg += n;
	if (*arg != '.')
		return arg;
	n = strspn(++arg, "0123456789");
	return n ? arg + n : NULL;
}

/* A decimal with a unit as a whole number of the field's own unit. */
static int64_t with_suffix(const char *arg, const struct suffix *s, size_t n)
{
	const char *end = decimal_end(arg, false);
	double v;

	for (size_t i = 0; end && i < n; i++) {
		if (strcmp(end, s[i].text))
			continue;
		v = strtod(arg, NULL) * s[i].factor;
		return v < 9e15 && v == floor(v) ? (int64_t)v : -1;
	}
	return -1;
}

static const char *flag_name(const struct field *f)
{
	return f->opt.alias ? f->opt.alias : f->opt.name;
}

static int bad_flag(const struct field *f, const char *arg, struct err *e)
{
	static const char *const examples[] = {
		[FIELD_MB] = ", as 512M or 2G",
		[FIELD_S] = ", as 90s, 15m or 2h",
		[FIELD_MS] = ", as 500ms, 90s or 15m",
		[FIELD_MAP] = ", as split=train",
	};
	const char *example = f->type < array_len(examples) ? examples[f->type]
							    : NULL;

	return err_set(e, -EINVAL, "usage", "--%s %s: not a %s%s", flag_name(f),
		       arg, f->opt.metavar ? f->opt.metavar : "value",
		       example ? example : "");
}

static int append(json_t *obj, const char *key, json_t *value)
{
	json_t *list = json_object_get(obj, key);

	if (!list) {
		list = json_array();
		if (json_object_set_new(obj, key, list) < 0)
			return -1;
	}
	return json_array_append_new(list, value);
}

static int map_entry(const struct field *f, const char *arg, json_t *obj,
		     struct err *e)
{
	const char *eq = strchr(arg, '=');
	json_t *map = json_object_get(obj, f->key);
	auto_free char *name = NULL;

	if (!eq || eq == arg)
		return bad_flag(f, arg, e);
	name = strndup(arg, (size_t)(eq - arg));
	if (!map) {
		map = json_object();
		json_object_set_new(obj, f->key, map);
	}
	if (!name || json_object_set_new(map, name, json_string(eq + 1)) < 0)
		return err_set(e, -EINVAL, "usage", "--%s: not UTF-8",
			       f->opt.name);
	return 0;
}

static json_t *whole(int64_t v)
{
	return v < 0 ? NULL : json_integer(v);
}

/* As a line would have it: --cpu 1 is the request "cpu_cores_limit":1. */
static json_t *number(double v)
{
	if (v > -1e15 && v < 1e15 && v == (double)(int64_t)v)
		return json_integer((int64_t)v);
	return json_real(v);
}

static json_t *flag_value(const struct field *f, const char *arg)
{
	const char *end;
	long long i;

	switch (f->type) {
	case FIELD_MB:
		return whole(
			with_suffix(arg, mb_suffixes, array_len(mb_suffixes)));
	case FIELD_S:
		return whole(
			with_suffix(arg, s_suffixes, array_len(s_suffixes)));
	case FIELD_MS:
		return whole(
			with_suffix(arg, ms_suffixes, array_len(ms_suffixes)));
	case FIELD_INT:
		errno = 0;
		i = strtoll(arg, NULL, 10);
		end = decimal_end(arg, true);
		return end && !*end && !errno && !strchr(arg, '.')
			       ? json_integer(i)
			       : NULL;
	case FIELD_NUM:
		end = decimal_end(arg, true);
		return end && !*end ? number(strtod(arg, NULL)) : NULL;
	case FIELD_BOOL:
		return json_true();
	default:
		return json_string(arg);
	}
}

static int structured(const struct field *f, const char *arg, json_t **ret,
		      struct err *e)
{
	json_error_t why;

	*ret = json_loads(arg, JSON_REJECT_DUPLICATES, &why);
	return *ret ? 0
		    : err_set(e, -EINVAL, "usage",
			      "--%s %s: not JSON: %s (column %d)", flag_name(f),
			      arg, why.text, why.column);
}

int field_of_flag(const struct field *f, const char *arg, json_t *obj,
		  struct err *e)
{
	json_t *v;

	if (f->type == FIELD_MAP)
		return map_entry(f, arg, obj, e);
	if (f->type == FIELD_OBJ) {
		if (structured(f, arg, &v, e) < 0)
			return -EINVAL;
	} else {
		v = flag_value(f, arg);
		if (!v)
			return bad_flag(f, arg, e);
	}
	if (f->type == FIELD_STRS ? append(obj, f->key, v) < 0
				  : json_object_set_new(obj, f->key, v) < 0)
		return err_sys(e, ENOMEM, "--%s", f->opt.name);
	return 0;
}

static int bad(const struct field *f, const char *want, struct err *e)
{
	return err_set(e, -EBADMSG, "bad_value", "'%s' is not %s", f->key,
		       want);
}

static int check_int(const struct field *f, const json_t *v, struct err *e)
{
	int64_t max = f->min == 0 && f->max == 0 ? INT64_MAX : f->max;
	int64_t i;

	if (max == 0)
		max = INT64_MAX;
	if (!json_is_integer(v))
		return bad(f, "an integer", e);
	i = json_integer_value(v);
	if (i >= f->min && i <= max)
		return 0;
	if (max == INT64_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' is %" PRId64 ": must be at least %" PRId64,
			       f->key, i, f->min);
	return err_set(e, -EBADMSG, "bad_value",
		       "'%s' is %" PRId64 ": must be %" PRId64 " to %" PRId64,
		       f->key, i, f->min, max);
}

static int check_num(const struct field *f, const json_t *v, struct err *e)
{
	double d;

	if (!json_is_number(v))
		return bad(f, "a number", e);
	d = json_number_value(v);
	if (d * 1000 >= (double)f->min &&
	    (f->max == 0 || d * 1000 <= (double)f->max))
		return 0;
	if (f->max == 0)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' is %g: must be at least %g", f->key, d,
			       (double)f->min / 1000);
	return err_set(e, -EBADMSG, "bad_value", "'%s' is %g: must be %g to %g",
		       f->key, d, (double)f->min / 1000, (double)f->max / 1000);
}

static int check_str(const struct field *f, const json_t *v, struct err *e)
{
	size_t max = f->max ? (size_t)f->max : FIELD_STR_MAX, len;

	if (!json_is_string(v))
		return bad(f, "a string", e);
	len = json_string_length(v);
	if (len < (size_t)f->min)
		return bad(f, "long enough", e);
	if (len > max)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' is %zu bytes long: %zu at most", f->key,
			       len, max);
	return 0;
}

static bool is_name(const char *s)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return *s && *s != '.' && *s != '_' && *s != '-' &&
	       s[strspn(s, chars)] == '\0';
}

static int check_strs(const struct field *f, const json_t *v, struct err *e)
{
	size_t i;
	json_t *item;

	if (!json_is_array(v))
		return bad(f, "an array of strings", e);
	json_array_foreach(v, i, item)
		if (!json_is_string(item))
			return bad(f, "an array of strings", e);
	return 0;
}

static int check_map(const struct field *f, json_t *v, struct err *e)
{
	const char *key;
	json_t *item;

	if (!json_is_object(v))
		return bad(f, "an object of strings", e);
	json_object_foreach(v, key, item)
		if (!json_is_string(item) || !*key)
			return bad(f, "an object of strings", e);
	return 0;
}

static int check_cmd(const struct field *f, json_t *obj, json_t *v,
		     struct err *e)
{
	json_t *argv;

	if (json_is_string(v)) {
		argv = json_pack("[ssO]", "/bin/sh", "-c", v);
		if (!argv || json_object_set_new(obj, f->key, argv) < 0)
			return err_sys(e, ENOMEM, "'%s'", f->key);
		return 0;
	}
	if (check_strs(f, v, NULL) < 0 || json_array_size(v) == 0 ||
	    json_string_length(json_array_get(v, 0)) == 0)
		return bad(f,
			   "a command: an array of strings, or a string for "
			   "the shell",
			   e);
	return 0;
}

static int check_id(const char *key, const json_t *v, struct err *e)
{
	if (json_is_integer(v))
		return 0;
	if (!json_is_string(v) || json_string_length(v) > 128)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' is not an integer or a string of at most "
			       "128 bytes",
			       key);
	return 0;
}

static int check_one(const struct field *f, json_t *obj, json_t *v,
		     struct err *e)
{
	if (f->later)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "'%s' is not in this release: %s", f->key,
			       f->later);
	switch (f->type) {
	case FIELD_STR:
	case FIELD_BYTES:
		return check_str(f, v, e);
	case FIELD_NAME:
		if (check_str(f, v, e) < 0)
			return -EBADMSG;
		if (!is_name(json_string_value(v)))
			return bad(f,
				   "a name: letters, digits, '.', '_' and "
				   "'-', a letter or digit first",
				   e);
		return 0;
	case FIELD_INT:
	case FIELD_MB:
	case FIELD_S:
	case FIELD_MS:
		return check_int(f, v, e);
	case FIELD_NUM:
		return check_num(f, v, e);
	case FIELD_BOOL:
		return json_is_boolean(v) ? 0 : bad(f, "true or false", e);
	case FIELD_CMD:
		return check_cmd(f, obj, v, e);
	case FIELD_STRS:
		return check_strs(f, v, e);
	case FIELD_MAP:
		return check_map(f, v, e);
	case FIELD_ID:
		return check_id(f->key, v, e);
	case FIELD_OBJ:
		return json_is_object(v) || json_is_array(v)
			       ? 0
			       : bad(f, "an object or array", e);
	default:
		return bad(f, "a field", e);
	}
}

static bool key_is(const struct field *f, const char *key)
{
	size_t n;

	if (!f->key)
		return false;
	if (!strcmp(f->key, key))
		return true;
	n = strlen(f->key);
	return f->type == FIELD_BYTES && !strncmp(f->key, key, n) &&
	       !strcmp(key + n, "_b64");
}

static const struct field *find(const struct field *fields, size_t n,
				const char *key)
{
	for (size_t i = 0; i < n; i++)
		if (key_is(&fields[i], key))
			return &fields[i];
	for (size_t i = 0; i < array_len(common); i++)
		if (key_is(&common[i], key))
			return &common[i];
	return NULL;
}

static int unknown(const struct field *fields, size_t n, const char *key,
		   struct err *e)
{
	struct near near = {.word = key};

	for (size_t i = 0; i < n; i++)
		near_try(&near, fields[i].key);
	return err_set(e, -EBADMSG, "unknown_field", "unknown field '%s'%s%s%s",
		       key, near.best ? ": is it '" : "",
		       near.best ? near.best : "", near.best ? "'?" : "");
}

int field_check(const struct field *fields, size_t n, json_t *obj,
		struct err *e)
{
	const struct field *f;
	const char *key;
	json_t *v;
	void *tmp;
	int r;

	json_object_foreach_safe(obj, tmp, key, v) {
		if (json_is_null(v)) {
			json_object_del(obj, key);
			continue;
		}
		if (!strcmp(key, "id")) {
			r = check_id(key, v, e);
		} else {
			f = find(fields, n, key);
			if (!f)
				return unknown(fields, n, key, e);
			r = check_one(f, obj, v, e);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

int field_need(const json_t *obj, const char *key, struct err *e)
{
	if (json_object_get(obj, key))
		return 0;
	return err_set(e, -EBADMSG, "missing_field", "'%s' is missing", key);
}
