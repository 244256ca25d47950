/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "item.h"

char *fmt_bytes(int64_t n, char *buf)
{
	static const char units[] = "KMGTPE";
	double v = (double)n;
	int i = -1;

	while (v >= 1000 && units[i + 1]) {
		v /= 1024;
		i++;
	}
	if (i < 0)
		snprintf(buf, 16, "%lld", (long long)n);
	else
		snprintf(buf, 16, v < 9.95 ? "%.1f%c" : "%.0f%c", v, units[i]);
	return buf;
}

char *fmt_age(int64_t since_ms, char *buf)
{
	int64_t s = ((int64_t)clock_wall_ms() - since_ms) / 1000;

	if (s < 0)
		s = 0;
	if (since_ms <= 0)
		snprintf(buf, 16, "-");
	else if (s < 120)
		snprintf(buf, 16, "%llds", (long long)s);
	else if (s < 7200)
		snprintf(buf, 16, "%lldm", (long long)(s / 60));
	else if (s < 172800)
		snprintf(buf, 16, "%lldh", (long long)(s / 3600));
	else
		snprintf(buf, 16, "%lldd", (long long)(s / 86400));
	return buf;
}

const char *fmt_digest(const char *digest, char *buf)
{
	const char *hex = strchr(digest, ':');

	snprintf(buf, 16, "%.12s", hex ? hex + 1 : digest);
	return buf;
}

static int64_t number(const json_t *rec, const char *key)
{
	return json_int(rec, key, 0);
}

static const char *or_dash(const char *s)
{
	return *s ? s : "-";
}

void print_ls(const json_t *rec, unsigned nth)
{
	char digest[16], bytes[16], fresh[16], age[16];

	if (nth == 0)
		printf("%-40s  %-9s  %-12s  %8s  %6s  %6s  %s\n", "NAME",
		       "KIND", "DIGEST", "ENTRIES", "BYTES", "NEW", "AGE");
	if (json_object_get(rec, "ok"))
		return;
	printf("%-40s  %-9s  %-12s  %8lld  %6s  %6s  %s\n",
	       or_dash(json_str(rec, "name")),
	       *json_str(rec, "damaged") ? "damaged" : json_str(rec, "kind"),
	       fmt_digest(json_str(rec, "digest"), digest),
	       (long long)number(rec, "entries"),
	       fmt_bytes(number(rec, "bytes"), bytes),
	       fmt_bytes(number(rec, "new_bytes"), fresh),
	       fmt_age(number(rec, "created_ms"), age));
}

void print_du(const json_t *rec, unsigned nth)
{
	char a[16], b[16], c[16], d[16];

	if (nth == 0)
		printf("%-40s  %7s  %7s  %7s  %7s\n", "NAME", "BYTES", "STORED",
		       "SHARED", "OWN");
	if (json_object_get(rec, "ok"))
		printf("%-40s  %7s  %7s  (%s that nothing leads to)\n",
		       "the store", "", fmt_bytes(number(rec, "stored"), a),
		       fmt_bytes(number(rec, "unused"), b));
	else
		printf("%-40s  %7s  %7s  %7s  %7s\n",
		       or_dash(json_str(rec, "name")),
		       fmt_bytes(number(rec, "bytes"), a),
		       fmt_bytes(number(rec, "stored"), b),
		       fmt_bytes(number(rec, "shared"), c),
		       fmt_bytes(number(rec, "own"), d));
}

static void print_names(const json_t *names, const char *sep)
{
	const json_t *name;
	size_t i;

	json_array_foreach(names, i, name)
		printf("%s%s", i ? sep : "", json_string_value(name));
}

/* Strangers' words may hold anything; a terminal gets what is harmless, and
 * what is in ${keep}.  In UTF-8, C2 80 to C2 9F are control characters too. */
static void print_but(const char *text, const char *keep)
{
	const unsigned char *s = (const void *)text;

	for (; *s; s++) {
		bool bad = (*s < ' ' || *s == 0x7f) && !strchr(keep, *s);
		bool two = *s == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f;

		putchar(bad || two ? '?' : *s);
		s += two;
	}
}

static void print_plain(const char *text)
{
	print_but(text, "");
}

static void print_path(const json_t *rec)
{
	const char *path = json_str(rec, "path");

	print_plain(*path ? path : json_str(rec, "path_b64"));
}

static void print_env_layers(const json_t *rec)
{
	char digest[16];
	const json_t *layer;
	size_t i;

	json_array_foreach(json_object_get(rec, "layers"), i, layer)
		printf("layer %zu: %s %s (%s, %lld entries)\n", i,
		       fmt_digest(json_str(layer, "digest"), digest),
		       or_dash(json_str(layer, "name")),
		       json_str(layer, "kind"),
		       (long long)number(layer, "entries"));
}

void print_env(const json_t *rec, unsigned nth)
{
	char *config;

	(void)nth;
	if (!json_object_get(rec, "ok")) {
		printf("%s: /", json_str(rec, "conflict"));
		print_path(rec);
		printf(": ");
		print_names(json_object_get(rec, "layers"), ", ");
		printf("; %s wins\n", json_str(rec, "winner"));
		return;
	}
	print_env_layers(rec);
	config = json_dumps(json_object_get(rec, "config"),
			    JSON_COMPACT | JSON_SORT_KEYS);
	printf("config: ");
	print_plain(config ? config : "");
	printf("\n");
	free(config);
	printf("conflicts: %lld\n", (long long)number(rec, "conflicts"));
	if (*json_str(rec, "name"))
		printf("%s is %s\n", json_str(rec, "name"),
		       json_str(rec, "digest"));
}

void print_inspect(const json_t *rec, unsigned nth)
{
	char *text = json_dumps(rec, JSON_INDENT(2));

	(void)nth;
	print_but(text ? text : "", "\n");
	printf("\n");
	free(text);
}

void print_rm(const json_t *rec, unsigned nth)
{
	(void)nth;
	if (json_object_get(rec, "ok")) {
		printf("removed %s\n", json_str(rec, "name"));
	} else {
		printf("in use by %s ", json_str(rec, "type"));
		print_plain(json_str(rec, "user"));
		printf("\n");
	}
}

void print_tag(const json_t *rec, unsigned nth)
{
	(void)nth;
	printf("%s is %s\n", json_str(rec, "name"), json_str(rec, "digest"));
}

void print_verify(const json_t *rec, unsigned nth)
{
	char digest[16];

	(void)nth;
	if (json_object_get(rec, "ok")) {
		printf("%lld images are what their digests say\n",
		       (long long)number(rec, "checked"));
		return;
	}
	printf("%s %s: ", fmt_digest(json_str(rec, "digest"), digest),
	       or_dash(json_str(rec, "name")));
	print_plain(*json_str(rec, "damaged") ? json_str(rec, "damaged")
					      : "good");
	printf("\n");
}

void print_prune(const json_t *rec, unsigned nth)
{
	char bytes[16], digest[16];

	(void)nth;
	if (!json_object_get(rec, "ok")) {
		printf("%s %s %s\n", json_str(rec, "what"),
		       fmt_digest(json_str(rec, "digest"), digest),
		       fmt_bytes(number(rec, "bytes"), bytes));
		return;
	}
	printf("%s %s: manifests %lld, metadata images %lld, blobs %lld; "
	       "%lld noted for a later run; layers unmounted: %lld\n",
	       json_flag(rec, "dry_run") ? "would free" : "freed",
	       fmt_bytes(number(rec, "freed_bytes"), bytes),
	       (long long)number(rec, "manifests"),
	       (long long)number(rec, "metas"), (long long)number(rec, "blobs"),
	       (long long)number(rec, "candidates"),
	       (long long)number(rec, "unmounted"));
}

/* What was made of it: import, pull, pack. */
static void print_made(const json_t *rec)
{
	char bytes[16], fresh[16];

	printf("%s %s: %s, %lld entries, %s, %s new\n",
	       or_dash(json_str(rec, "name")), json_str(rec, "digest"),
	       json_str(rec, "kind"), (long long)number(rec, "entries"),
	       fmt_bytes(number(rec, "bytes"), bytes),
	       fmt_bytes(number(rec, "new_bytes"), fresh));
}

void print_import(const json_t *rec, unsigned nth)
{
	const json_t *v;
	const char *key;

	(void)nth;
	if (!json_object_get(rec, "ok"))
		return;
	print_made(rec);
	json_object_foreach(json_object_get(rec, "dropped"), key, v) {
		printf("  left out: %lld %s\n",
		       (long long)json_integer_value(v), key);
	}
	if (json_object_get(rec, "warning"))
		printf("  warning: %s\n", json_str(rec, "warning"));
}

void print_pack(const json_t *rec, unsigned nth)
{
	char bytes[16];
	const json_t *one;
	size_t i;

	(void)nth;
	json_array_foreach(json_object_get(rec, "removed"), i, one) {
		printf("%s: /", json_str(one, "rule"));
		print_path(one);
		printf(" (%s)\n", fmt_bytes(number(one, "bytes"), bytes));
	}
	if (*json_str(rec, "digest"))
		print_made(rec);
	else if (*json_str(rec, "inbox"))
		printf("%s\n", json_str(rec, "inbox"));
}

void print_diff(const json_t *rec, unsigned nth)
{
	(void)nth;
	if (json_object_get(rec, "ok")) {
		printf("%lld added, %lld removed, %lld changed\n",
		       (long long)number(rec, "added"),
		       (long long)number(rec, "removed"),
		       (long long)number(rec, "changed"));
		return;
	}
	printf("%s /", json_str(rec, "change"));
	print_path(rec);
	if (json_object_get(rec, "what")) {
		printf(": ");
		print_names(json_object_get(rec, "what"), ", ");
	}
	printf("\n");
}

void print_lint(const json_t *rec, unsigned nth)
{
	(void)nth;
	if (json_object_get(rec, "ok")) {
		printf("%lld findings\n", (long long)number(rec, "findings"));
		return;
	}
	printf("%s: /", json_str(rec, "rule"));
	print_path(rec);
	if (*json_str(rec, "detail")) {
		printf(": ");
		print_plain(json_str(rec, "detail"));
	}
	printf("\n");
}

void print_export(const json_t *rec, unsigned nth)
{
	char bytes[16];

	(void)nth;
	printf("%s written\n", fmt_bytes(number(rec, "bytes"), bytes));
	if (number(rec, "left_out_count"))
		printf("  left out: %lld sockets\n",
		       (long long)number(rec, "left_out_count"));
}

void print_mount(const json_t *rec, unsigned nth)
{
	const json_t *layer, *digest;
	size_t i;

	(void)nth;
	json_array_foreach(json_object_get(rec, "layers"), i, layer)
		printf("%s %s\n", json_str(layer, "way"),
		       json_str(layer, "path"));
	json_array_foreach(json_object_get(rec, "unmounted"), i, digest)
		printf("unmounted %s\n", json_string_value(digest));
}
