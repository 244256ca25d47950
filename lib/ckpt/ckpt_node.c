/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "ckpt/ckpt.h"

/*
 * Features of a CPU that programs look for once and use ever after, by the
 * names of /proc/cpuinfo.  What the kernel alone sees is left out: a new
 * microcode changes it, and it keeps nothing from running.
 */
static const char *const prefixes[] = {
	/* x86 */
	"sse",
	"ssse",
	"avx",
	"amx_",
	"bmi",
	"xsave",
	"fma",
	"sha",
	"aes",
	"vaes",
	"gfni",
	"pclmul",
	"vpclmul",
	"movbe",
	"movdir",
	"popcnt",
	"rdr",
	"rdseed",
	"rdtscp",
	"rdpid",
	"adx",
	"abm",
	"f16c",
	"cx",
	"clflush",
	"clwb",
	"fsgsbase",
	"erms",
	"fsrm",
	"hle",
	"rtm",
	"serialize",
	"pku",
	"ospke",
	"user_shstk",
	"waitpkg",
	"tbm",
	"xop",
	"enqcmd",
	"mmx",
	"fxsr",
	"lahf",
	"prfchw",
	"3dnow",
	/* arm */
	"asimd",
	"fp",
	"pmull",
	"crc32",
	"atomics",
	"jscvt",
	"fcma",
	"lrcpc",
	"dcp",
	"sm",
	"sve",
	"sme",
	"flag",
	"ssbs",
	"sb",
	"pac",
	"bti",
	"mte",
	"rng",
	"i8mm",
	"bf16",
	"dgh",
	"evtstrm",
	"uscat",
	"ilrcpc",
	"frint",
};

static bool for_programs(const char *word, size_t len)
{
	for (size_t i = 0; i < array_len(prefixes); i++) {
		size_t n = strlen(prefixes[i]);

		if (n <= len && !memcmp(word, prefixes[i], n))
			return true;
	}
	return false;
}

/* The line of the first CPU, as words with a space on each side. */
static int features(struct buf *b, struct err *e)
{
	auto_free char *text = NULL;
	const char *line;
	size_t len;
	int r;

	r = fd_read_file(AT_FDCWD, "/proc/cpuinfo", 16 << 20, &text, NULL, e);
	if (r < 0)
		return r;
	line = strstr(text, "\nflags");
	if (!line)
		line = strstr(text, "\nFeatures");
	if (line)
		line = strchr(line, ':');
	if (buf_add(b, " ", 1) < 0)
		return err_sys(e, ENOMEM, "CPU features");
	if (!line)
		return 0;
	for (line++; *line && *line != '\n'; line += len) {
		line += strspn(line, " \t");
		len = strcspn(line, " \t\n");
		if (len && for_programs(line, len) &&
		    (buf_add(b, line, len) < 0 || buf_add(b, " ", 1) < 0))
			return err_sys(e, ENOMEM, "CPU features");
	}
	return 0;
}

int ckpt_facts(json_t *obj, struct err *e)
{
	auto_buf struct buf b = {0};
	struct utsname u;
	int r;

	r = features(&b, e);
	if (r < 0)
		return r;
	if (uname(&u) < 0)
		return err_sys(e, errno, "uname");
	if (json_object_set_new(obj, "arch", json_string(u.machine)) < 0 ||
	    json_object_set_new(obj, "kernel", json_string(u.release)) < 0 ||
	    json_object_set_new(obj, "cpu", json_string(b.data)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	return 0;
}

static int misfit(struct err *e, const char *what, const char *was,
		  const char *is)
{
	return err_set(e, -EXDEV, "incompatible",
		       "it was made on a node with %s '%s', this one has '%s'",
		       what, was, is);
}

/* Compares the numbers that two versions begin with. */
static int compare(const char *a, const char *b, int fields)
{
	char *ea, *eb;
	long x, y;

	for (int i = 0; i < fields; i++) {
		x = strtol(a, &ea, 10);
		y = strtol(b, &eb, 10);
		if (x != y)
			return x < y ? -1 : 1;
		a = *ea == '.' ? ea + 1 : ea;
		b = *eb == '.' ? eb + 1 : eb;
	}
	return 0;
}

static int cpu_fits(const char *was, struct err *e)
{
	auto_buf struct buf b = {0};
	char word[40];
	size_t len;
	int r;

	r = features(&b, e);
	if (r < 0)
		return r;
	for (; *was; was += len) {
		was += strspn(was, " ");
		len = strcspn(was, " ");
		if (!len)
			break;
		if (len > sizeof(word) - 3)
			return err_set(e, -EXDEV, "incompatible",
				       "a CPU feature nobody knows");
		snprintf(word, sizeof(word), " %.*s ", (int)len, was);
		if (!strstr(b.data, word))
			return err_set(e, -EXDEV, "incompatible",
				       "this node's CPU lacks%.*s, which the "
				       "one it was made on has",
				       (int)len + 1, word);
	}
	return 0;
}

int ckpt_fits(const struct ckpt *c, const char *engine_version, struct err *e)
{
	const char *arch = json_str(c->json, "arch");
	const char *kernel = json_str(c->json, "kernel");
	const char *engine = json_str(c->json, "engine_version");
	struct utsname u;

	if (!c->processes)
		return 0;
	if (uname(&u) < 0)
		return err_sys(e, errno, "uname");
	if (strcmp(arch, u.machine) != 0)
		return misfit(e, "architecture", arch, u.machine);
	/* What a newer kernel gave to programs, an older one may not have. */
	if (compare(u.release, kernel, 2) < 0)
		return misfit(e, "kernel", kernel, u.release);
	if (compare(engine_version, engine, 3) < 0)
		return misfit(e, "engine", engine, engine_version);
	return cpu_fits(json_str(c->json, "cpu"), e);
}
