/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "box/profile_file.h"
#include "sys/systable.h"
#include "wire/exit.h"
#include "wire/json.h"

static const struct opt opts[] = {
	{"arch", NULL, 0, "ARCH", "x86_64 or aarch64 (this machine's)"},
	{"help", NULL, 'h', NULL, "print this"},
};
enum { OPT_ARCH, OPT_HELP };

static const char usage[] = "dsec-seccomp [--arch ARCH] PROFILE.json NAME.bpf";

static uint32_t arg_arch = PROFILE_ARCH;

/* In the kernel's order: the index is the number. */
static const char *const capabilities[] = {
	"CHOWN",
	"DAC_OVERRIDE",
	"DAC_READ_SEARCH",
	"FOWNER",
	"FSETID",
	"KILL",
	"SETGID",
	"SETUID",
	"SETPCAP",
	"LINUX_IMMUTABLE",
	"NET_BIND_SERVICE",
	"NET_BROADCAST",
	"NET_ADMIN",
	"NET_RAW",
	"IPC_LOCK",
	"IPC_OWNER",
	"SYS_MODULE",
	"SYS_RAWIO",
	"SYS_CHROOT",
	"SYS_PTRACE",
	"SYS_PACCT",
	"SYS_ADMIN",
	"SYS_BOOT",
	"SYS_NICE",
	"SYS_RESOURCE",
	"SYS_TIME",
	"SYS_TTY_CONFIG",
	"MKNOD",
	"LEASE",
	"AUDIT_WRITE",
	"AUDIT_CONTROL",
	"SETFCAP",
	"MAC_OVERRIDE",
	"MAC_ADMIN",
	"SYSLOG",
	"WAKE_ALARM",
	"BLOCK_SUSPEND",
	"AUDIT_READ",
	"PERFMON",
	"BPF",
	"CHECKPOINT_RESTORE",
};

static int wrong(struct err *e, const char *what, const char *word)
{
	return err_set(e, -EBADMSG, "configuration", "%s '%s'", what, word);
}

static int take_caps(const json_t *profile, uint64_t *ret_caps, struct err *e)
{
	const json_t *list = json_object_get(profile, "capabilities");
	const char *word;
	uint64_t caps = 0;
	size_t i, k;
	json_t *v;

	if (!json_is_array(list))
		return wrong(e, "not a list:", "capabilities");
	json_array_foreach(list, i, v) {
		word = json_is_string(v) ? json_string_value(v) : "";
		for (k = 0; k < array_len(capabilities); k++)
			if (!strcmp(word, capabilities[k]))
				break;
		if (k == array_len(capabilities))
			return wrong(e, "unknown capability", word);
		caps |= UINT64_C(1) << k;
	}
	*ret_caps = caps;
	return 0;
}

static int change(struct systable *t, const char *name, const json_t *list,
		  struct err *e)
{
	const char *words[SYSTABLE_CLAUSES_MAX];
	size_t i, n = json_array_size(list);
	json_t *v;

	if (!json_is_array(list) || n > array_len(words))
		return wrong(e, "not a list of lines:", name);
	json_array_foreach(list, i, v) {
		if (!json_is_string(v))
			return wrong(e, "not a list of lines:", name);
		words[i] = json_string_value(v);
	}
	return systable_change(t, name, n, words, e);
}

/* Names become numbers; those that ${arg_arch} does not have stay out. */
static int number(struct systable *t, struct err *e)
{
	uint32_t token = arg_arch == AUDIT_ARCH_X86_64 ? SCMP_ARCH_X86_64
						       : SCMP_ARCH_AARCH64;
	struct systable_rule *r;
	int nr;

	for (size_t i = 0; i < t->nrules; i++) {
		r = &t->rules[i];
		nr = seccomp_syscall_resolve_name_arch(token, r->name);
		if (nr == __NR_SCMP_ERROR && r->nr < 0)
			return wrong(e, "unknown system call", r->name);
		if (nr >= 0 && r->nr >= 0 && nr != r->nr)
			return wrong(e, "wrong number of", r->name);
		if (r->nr >= 0 && r->nr < 424 && token != SCMP_ARCH_X86_64)
			r->nr = -1;
		else if (nr != __NR_SCMP_ERROR)
			r->nr = nr;
	}
	return 0;
}

static int load_table(const char *dir, const json_t *profile,
		      struct systable *ret, struct err *e)
{
	const char *file = json_str(profile, "syscalls");
	auto_free char *text = NULL;
	struct systable t;
	char path[PATH_MAX];
	const char *name;
	json_t *list;
	int r;

	if (!*file || strchr(file, '/'))
		return wrong(e, "not a file beside the profile:", file);
	if (snprintf(path, sizeof(path), "%s/%s", dir, file) >=
	    (int)sizeof(path))
		return wrong(e, "the path is too long:", file);
	r = fd_read_file(AT_FDCWD, path, 1 << 20, &text, NULL, e);
	if (r < 0)
		return r;
	r = systable_parse(text, path, &t, e);
	if (r < 0)
		return r;
	json_object_foreach(json_object_get(profile, "changes"), name, list)
		if (r == 0)
			r = change(&t, name, list, e);
	if (r == 0)
		r = number(&t, e);
	if (r < 0)
		systable_done(&t);
	else
		*ret = t;
	return r;
}

static int take_keys(const json_t *profile, struct err *e)
{
	static const char *const known[] = {
		"description",	"nested",   "sealed",  "checkpointable",
		"capabilities", "syscalls", "changes",
	};
	const char *key = json_unknown(profile, known, array_len(known));

	return key ? wrong(e, "unknown key", key) : 0;
}

/* All three have to be said. */
static int take_flags(const json_t *profile, uint32_t *flags, struct err *e)
{
	static const struct {
		const char *key;
		uint32_t bit;
	} all[] = {
		{"nested", PROFILE_NESTED},
		{"sealed", PROFILE_SEALED},
		{"checkpointable", PROFILE_CHECKPOINTABLE},
	};
	const json_t *v;

	for (size_t i = 0; i < array_len(all); i++) {
		v = json_object_get(profile, all[i].key);
		if (!json_is_boolean(v))
			return wrong(e, "not true or false:", all[i].key);
		if (json_is_true(v))
			*flags |= all[i].bit;
	}
	return 0;
}

static int fill_head(const json_t *profile, const char *name,
		     struct profile_file *h, struct err *e)
{
	int r;

	memset(h, 0, sizeof(*h));
	if (strlen(name) > sizeof(h->name))
		return wrong(e, "the name is too long:", name);
	r = take_keys(profile, e);
	if (r < 0)
		return r;
	memcpy(h->magic, PROFILE_MAGIC, sizeof(h->magic));
	h->version = PROFILE_VERSION;
	h->arch = arg_arch;
	h->nfilters = 1;
	r = take_flags(profile, &h->flags, e);
	if (r < 0)
		return r;
	memcpy(h->name, name, strlen(name));
	return take_caps(profile, &h->caps, e);
}

/* DIR/NAME.EXT into dir and name, each of PATH_MAX bytes. */
static int split(const char *path, const char *ext, char *dir, char *name,
		 struct err *e)
{
	size_t n = strlen(path), x = strlen(ext);
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path;

	if (n >= PATH_MAX || strlen(base) <= x || strcmp(path + n - x, ext))
		return err_set(e, -EINVAL, "usage", "'%s' is no *%s", path,
			       ext);
	snprintf(name, PATH_MAX, "%.*s", (int)(strlen(base) - x), base);
	snprintf(dir, PATH_MAX, "%.*s", slash ? (int)(slash - path) : 1,
		 slash ? path : ".");
	return 0;
}

static int write_out(const char *path, struct profile_file *h,
		     const struct sock_filter *insns, size_t n, struct err *e)
{
	char dir[PATH_MAX], name[PATH_MAX];
	auto_buf struct buf b = {0};
	auto_close int fd = -1;
	int r;

	h->lens[0] = (uint32_t)n;
	if (buf_add(&b, h, sizeof(*h)) < 0 ||
	    buf_add(&b, insns, n * sizeof(*insns)) < 0)
		return err_sys(e, ENOMEM, "filter");
	if (b.len > PROFILE_FILE_MAX)
		return wrong(e, "the filter is too long for", path);
	h->digest = profile_digest(b.data, b.len);
	memcpy(b.data, h, sizeof(*h));
	r = split(path, "", dir, name, e);
	if (r < 0)
		return r;
	fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", dir);
	return fd_replace(fd, name, b.data, b.len, 0, e);
}

static int compile(const char *in, const char *out, struct err *e)
{
	struct sock_filter insns[BPF_MAXINSNS / 2];
	auto_json json_t *profile = NULL;
	char dir[PATH_MAX], name[PATH_MAX];
	struct profile_file h;
	struct systable t;
	int r, n;

	r = split(in, ".json", dir, name, e);
	if (r == 0)
		r = json_read_file(AT_FDCWD, in, &profile, e);
	if (r == 0)
		r = fill_head(profile, name, &h, e);
	if (r == 0)
		r = load_table(dir, profile, &t, e);
	if (r < 0)
		return r;
	n = systable_compile(&t, arg_arch, insns, array_len(insns), e);
	systable_done(&t);
	return n < 0 ? n : write_out(out, &h, insns, (size_t)n, e);
}

static int take_arch(const char *word, struct err *e)
{
	if (!strcmp(word, "x86_64"))
		arg_arch = AUDIT_ARCH_X86_64;
	else if (!strcmp(word, "aarch64"))
		arg_arch = AUDIT_ARCH_AARCH64;
	else
		return err_set(e, -EINVAL, "usage", "unknown --arch '%s'",
			       word);
	return 0;
}

/* The two paths into words[]; 1: help was asked for. */
static int parse(int argc, char **argv, const char **words, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(opts),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, n = 0, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_HELP)
			return 1;
		if (r == OPT_ARCH)
			r = take_arch(arg, e);
		else if (r == OPT_WORD && n < 2)
			words[n++] = arg;
		else if (r == OPT_WORD)
			break;
		if (r != OPT_WORD && r < 0)
			return r;
	}
	if (r != OPT_END || n != 2)
		return err_set(e, -EINVAL, "usage", "usage: %s", usage);
	return 0;
}

int main(int argc, char **argv)
{
	const char *words[2];
	struct err e = {0};
	int r;

	log_init("dsec-seccomp");
	r = parse(argc, argv, words, &e);
	if (r == 1) {
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(opts));
		return EXIT_OK;
	}
	if (r == 0)
		r = compile(words[0], words[1], &e);
	if (r == 0)
		return EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
