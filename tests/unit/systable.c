/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of system calls: its grammar, that it decides every call that the
 * kernel's headers know, and that the filter made of it says what it says.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "box/profile.h"
#include "box/profile_file.h"
#include "sys/systable.h"
#include "../tap.h"

#define NUMBERS 4096

static const char *const headers[] = {
#if defined(__x86_64__)
	"/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
	"/usr/include/asm/unistd_64.h",
#else
	"/usr/include/aarch64-linux-gnu/asm/unistd_64.h",
	"/usr/include/asm/unistd_64.h",
	"/usr/include/asm-generic/unistd.h",
#endif
};

static const struct {
	const char *text, *what;
} bad[] = {
	{"", "nothing"},
	{"# a comment\n", "comments alone"},
	{"read\n", "no action"},
	{"read maybe\n", "an unknown action"},
	{"read allow now\n", "words after the action"},
	{"read allow if\n", "no condition"},
	{"read allow if arg6==1\nread EPERM\n", "a seventh argument"},
	{"read allow if arg0=1\nread EPERM\n", "one '='"},
	{"read allow if arg0==\nread EPERM\n", "no value"},
	{"read allow if arg0==0x100000000\nread EPERM\n", "more than 32 bits"},
	{"read allow if arg0&0xf0==0x1\nread EPERM\n", "outside the mask"},
	{"read allow if arg0==1x\nread EPERM\n", "half a number"},
	{"read allow if arg0==-1\nread EPERM\n", "a sign"},
	{"read allow if arg0==1\n", "an open case at the end"},
	{"read allow if arg0==1\nwrite allow\n", "an open case"},
	{"read allow\nread EPERM\n", "a line that is never reached"},
	{"read allow\nwrite allow\nread EPERM\n", "a name that comes back"},
	{"read@x allow\n", "no number"},
	{"read@5000 allow\n", "a number that is too big"},
	{"a_name_that_is_longer_than_any_call allow\n", "a long name"},
};

static void test_grammar(void)
{
	struct systable t = {0};
	struct err e;

	for (size_t i = 0; i < array_len(bad); i++)
		if (!ok(systable_parse(bad[i].text, "t", &t, &e) < 0,
			"refused: %s", bad[i].what))
			systable_done(&t);
	is_int(systable_parse("read allow\n\n# no\nwrite@7 EPERM if "
			      "arg0&0xf0==0x10 arg1==2 # why\nwrite allow",
			      "t", &t, &e),
	       0, "a table");
	is_int((long long)t.nrules, 2, "has two calls");
	is_int(t.rules[1].nr, 7, "and a number");
	is_int(systable_decide(&t, 7, (__u64[6]){0x1f, 2}), EPERM, "both");
	is_int(systable_decide(&t, 7, (__u64[6]){0x1f, 3}), 0, "only one");
	is_int(systable_decide(&t, 7, (__u64[6]){0xfffff00000001fu, 2}), EPERM,
	       "upper bits do not count");
	is_int(systable_decide(&t, 9, (__u64[6]){0}), ENOSYS, "not named");
	is_int(systable_change(&t, "write", 1, (const char *[]){"allow"}, &e),
	       0, "a change");
	is_int(systable_decide(&t, 7, (__u64[6]){0x1f, 2}), 0, "changed");
	ok(systable_change(&t, "x", 1, (const char *[]){"allow"}, &e) < 0,
	   "a change of what is not there");
	ok(systable_change(&t, "read", 0, NULL, &e) < 0, "a change to nothing");
	systable_done(&t);
}

/* The header's "#define __NR_name number" into names[number]. */
static int read_header(char **names)
{
	char line[256], name[64];
	FILE *f = NULL;
	int nr, n = 0;

	for (size_t i = 0; !f && i < array_len(headers); i++)
		f = fopen(headers[i], "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "#define __NR_%63s %d", name, &nr) != 2 &&
		    sscanf(line, "#define __NR3264_%63s %d", name, &nr) != 2)
			continue;
		if (nr < 0 || nr >= NUMBERS || names[nr] ||
		    !strcmp(name, "arch_specific_syscall"))
			continue;
		names[nr] = strdup(name);
		n++;
	}
	fclose(f);
	return n;
}

static struct systable_rule *rule_of(struct systable *t, const char *name)
{
	for (size_t i = 0; i < t->nrules; i++)
		if (!strcmp(t->rules[i].name, name))
			return &t->rules[i];
	return NULL;
}

/* A new kernel's calls show here: decide each in share/profiles/syscalls. */
static void test_headers(struct systable *t, char **names)
{
	int missing = 0, wrong = 0;
	struct systable_rule *r;

	for (int nr = 0; nr < NUMBERS; nr++) {
		if (!names[nr])
			continue;
		r = rule_of(t, names[nr]);
		if (!r) {
			printf("# %s (%d) is not decided\n", names[nr], nr);
			missing++;
		} else if (r->nr >= 0 && r->nr != nr) {
			printf("# %s is %d, not %d\n", names[nr], nr, r->nr);
			wrong++;
		} else {
			r->nr = nr;
		}
	}
	is_int(missing, 0, "every call of the kernel's headers is decided");
	is_int(wrong, 0, "and its number, where it is given, is right");
}

/* The running kernel may be younger than the headers: only said. */
static void note_unknown(const struct systable *t, char **names)
{
	bool known;
	int status;
	pid_t pid;

	for (int nr = 424; nr < 512; nr++) {
		known = names[nr] != NULL;
		for (size_t i = 0; i < t->nrules; i++)
			known |= t->rules[i].nr == nr;
		if (known)
			continue;
		pid = fork();
		if (pid == 0)
			_exit(syscall(nr, -1, -1, -1, -1, -1, -1) < 0 &&
			      errno == ENOSYS);
		if (waitpid(pid, &status, 0) == pid && status == 0)
			printf("# this kernel knows a call %d that is not "
			       "in the table: it is ENOSYS inside\n",
			       nr);
	}
}

/* What the filter answers: SECCOMP_RET_*.  Only the instructions we emit. */
static uint32_t interpret(const struct sock_filter *f, size_t n,
			  const struct seccomp_data *d)
{
	uint32_t acc = 0;

	for (size_t pc = 0; pc < n; pc++) {
		switch (f[pc].code) {
		case BPF_LD | BPF_W | BPF_ABS:
			if (f[pc].k > sizeof(*d) - 4 || f[pc].k % 4)
				return 1;
			memcpy(&acc, (const char *)d + f[pc].k, 4);
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			acc &= f[pc].k;
			break;
		case BPF_JMP | BPF_JA:
			pc += f[pc].k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			pc += acc == f[pc].k ? f[pc].jt : f[pc].jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			pc += acc >= f[pc].k ? f[pc].jt : f[pc].jf;
			break;
		case BPF_RET | BPF_K:
			return f[pc].k;
		default:
			return 1;
		}
	}
	return 2;
}

static uint32_t answer(int action)
{
	return action ? SECCOMP_RET_ERRNO | (uint32_t)action
		      : SECCOMP_RET_ALLOW;
}

/* Arguments that matter: what conditions compare with, and next to it. */
static int mismatches_of(const struct systable *t,
			 const struct systable_rule *r,
			 const struct sock_filter *f, size_t n)
{
	struct seccomp_data d = {.nr = r->nr, .arch = PROFILE_ARCH};
	const struct systable_cond *c;
	int bad_n = 0;

	for (unsigned i = 0; i < r->nclauses; i++) {
		for (unsigned v = 0; v < 64; v++) {
			memset(d.args, 0, sizeof(d.args));
			for (unsigned k = 0; k < r->clauses[i].nconds; k++) {
				c = &r->clauses[i].conds[k];
				d.args[c->arg] = c->value;
				if (v & 1)
					d.args[c->arg] ^= 1u << (v >> 1);
			}
			if (v & 2) /* upper halves must not count */
				for (unsigned k = 0; k < 6; k++)
					d.args[k] |= UINT64_C(1) << 32 |
						     UINT64_C(1) << 63;
			if (interpret(f, n, &d) !=
			    answer(systable_decide(t, r->nr, d.args)))
				bad_n++;
		}
	}
	return bad_n;
}

static void test_filter(const struct systable *t, const struct sock_filter *f,
			size_t n, const char *what)
{
	struct seccomp_data d = {.arch = PROFILE_ARCH};
	int bad_n = 0;

	for (d.nr = 0; d.nr < NUMBERS; d.nr++)
		if (interpret(f, n, &d) !=
		    answer(systable_decide(t, d.nr, d.args))) {
			printf("# call %d\n", d.nr);
			bad_n++;
		}
	is_int(bad_n, 0, what);
	for (size_t i = 0; i < t->nrules; i++)
		if (t->rules[i].nr >= 0)
			bad_n += mismatches_of(t, &t->rules[i], f, n);
	is_int(bad_n, 0, "so do its conditions");
	d.nr = 0;
	d.arch = AUDIT_ARCH_I386;
	is_int(interpret(f, n, &d), SECCOMP_RET_KILL_PROCESS,
	       "another architecture is killed");
	d.arch = PROFILE_ARCH;
	d.nr = -1;
	is_int(interpret(f, n, &d), answer(ENOSYS), "-1 is no call");
#if defined(__x86_64__)
	d.nr = 0x40000000;
	is_int(interpret(f, n, &d), SECCOMP_RET_KILL_PROCESS, "x32 is killed");
	d.nr = 0x40000000 + 39;
	is_int(interpret(f, n, &d), SECCOMP_RET_KILL_PROCESS, "all of it");
	d.nr = 0x7fffffff;
	is_int(interpret(f, n, &d), SECCOMP_RET_KILL_PROCESS, "to the end");
#endif
}

/* What must hold whatever else the table comes to say. */
static const struct {
	const char *name;
	int action;
	__u64 args[3];
} musts[] = {
	{"bpf", EPERM, {0}},
	{"perf_event_open", EPERM, {0}},
	{"add_key", EPERM, {0}},
	{"request_key", EPERM, {0}},
	{"keyctl", EPERM, {0}},
	{"userfaultfd", EPERM, {0}},
	{"memfd_secret", EPERM, {0}},
	{"open_by_handle_at", EPERM, {0}},
	{"io_uring_setup", ENOSYS, {0}},
	{"io_uring_enter", ENOSYS, {0}},
	{"io_uring_register", ENOSYS, {0}},
	{"clone3", ENOSYS, {0}},
	{"mount", EPERM, {0}},
	{"open_tree", EPERM, {0}},
	{"move_mount", EPERM, {0}},
	{"fsopen", EPERM, {0}},
	{"mount_setattr", EPERM, {0}},
	{"pivot_root", EPERM, {0}},
	{"setns", EPERM, {0}},
	{"kexec_load", EPERM, {0}},
	{"init_module", EPERM, {0}},
	{"reboot", EPERM, {0}},
	{"syslog", EPERM, {0}},
	{"clock_settime", EPERM, {0}},
	{"fanotify_init", EPERM, {0}},
	{"kcmp", EPERM, {0}},
	{"vhangup", EPERM, {0}},
	{"clone", 0, {0x1200011}},
	{"clone", EPERM, {0x10000011}},
	{"clone", EPERM, {0x00020011}},
	{"clone", EPERM, {0x100020000011u}},
	{"unshare", 0, {0x200}},
	{"unshare", EPERM, {0x80}},
	{"unshare", EPERM, {0x10000000}},
	{"socket", 0, {1, 1, 0}},
	{"socket", 0, {10, 1, 0}},
	{"socket", 0, {16, 3, 0}},
	{"socket", EAFNOSUPPORT, {16, 3, 12}},
	{"socket", EAFNOSUPPORT, {16, 3, 9}},
	{"socket", EAFNOSUPPORT, {40, 1, 0}},
	{"socket", EAFNOSUPPORT, {38, 5, 0}},
	{"socket", EAFNOSUPPORT, {17, 3, 0}},
	{"personality", 0, {0x40000}},
	{"personality", EPERM, {0x400000}},
	{"fcntl", EACCES, {0, 1024, 0}},
	{"fcntl", 0, {0, 1025, 0}},
	{"ioctl", 0, {0, 0x5413, 0}},
	{"ioctl", EPERM, {0, 0x5412, 0}},
	{"ioctl", EPERM, {0, 0x100005412u, 0}},
	{"ioctl", EPERM, {0, 0x401c5820, 0}},
	{"ioctl", EPERM, {0, 0x5000940e, 0}},
	{"ioctl", 0, {0, 0x40049409, 0}},
};

static void test_musts(struct systable *t)
{
	__u64 args[6] = {0};
	struct systable_rule *r;

	for (size_t i = 0; i < array_len(musts); i++) {
		r = rule_of(t, musts[i].name);
		memcpy(args, musts[i].args, sizeof(musts[i].args));
		ok(r && systable_decide(t, r->nr, args) == musts[i].action,
		   "%s(%#llx, %#llx)", musts[i].name,
		   (unsigned long long)args[0], (unsigned long long)args[1]);
	}
}

static void test_shipped(const struct systable *t)
{
	struct profile p;
	struct err e = {0};
	char dir[4096];
	const char *bin = getenv("BIN");

	snprintf(dir, sizeof(dir), "%s/../libexec/dsec", bin ? bin : "bin");
	setenv("DSEC_LIBEXEC", dir, 1);
	if (!ok(profile_load("default", &p, &e) == 0, "default.bpf: %s", e.msg))
		return;
	test_filter(t, p.filters[0].filter, p.filters[0].len,
		    "default.bpf says what the table says");
	profile_done(&p);
}

static void test_table(char **names)
{
	struct sock_filter f[BPF_MAXINSNS];
	auto_free char *text = NULL;
	struct systable t;
	struct err e = {0};
	int n;

	if (fd_read_file(AT_FDCWD, "share/profiles/syscalls", 1 << 20, &text,
			 NULL, &e) < 0 ||
	    systable_parse(text, "syscalls", &t, &e) < 0) {
		ok(false, "the table: %s", e.msg);
		return;
	}
	if (read_header(names) < 0) {
		skip("the kernel's headers", "not installed");
	} else {
		test_headers(&t, names);
		note_unknown(&t, names);
		test_musts(&t);
		n = systable_compile(&t, PROFILE_ARCH, f, array_len(f), &e);
		ok(n > 0, "%d instructions", n);
		test_filter(&t, f, (size_t)(n > 0 ? n : 0),
			    "the filter says what the table says");
		ok(n > 0 && systable_compile(&t, PROFILE_ARCH, f, (size_t)n - 1,
					     &e) == -EFBIG,
		   "no room for all of it");
		test_shipped(&t);
	}
	systable_done(&t);
}

int main(void)
{
	static char *names[NUMBERS];

	test_grammar();
	test_table(names);
	for (int i = 0; i < NUMBERS; i++)
		free(names[i]);
	return tap_done();
}
