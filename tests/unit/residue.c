/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "img/residue.h"
#include "img/residue_scan.h"
#include "../tap.h"

#define KEY "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"

/* clang-format off */
static const struct {
	const char *path;
	mode_t mode;
	enum residue_part want;
	const char *rule;
} cases[] = {
	{"root/.cache", S_IFDIR, RESIDUE_BELOW, "cache"},
	{"home/agent/.cache", S_IFDIR, RESIDUE_BELOW, "cache"},
	{"home/a/b/.cache", S_IFDIR, RESIDUE_NONE, NULL},
	{"work/root/.cache", S_IFDIR, RESIDUE_NONE, NULL},
	{"root/.cache", S_IFREG, RESIDUE_NONE, NULL},
	{"work/.npm/_cacache", S_IFDIR, RESIDUE_ALL, "cache"},
	{"var/cache/apt/archives/x_1.deb", S_IFREG, RESIDUE_ALL, "apt"},
	{"var/cache/apt/archives/lock", S_IFREG, RESIDUE_NONE, NULL},
	{"srv/var/cache/apt/archives/x.deb", S_IFREG, RESIDUE_NONE, NULL},
	{"var/lib/apt/lists", S_IFDIR, RESIDUE_BELOW, "apt"},
	{"root/.bash_history", S_IFREG, RESIDUE_ALL, "history"},
	{".python_history", S_IFREG, RESIDUE_ALL, "history"},
	{"root/.bash_history", S_IFCHR, RESIDUE_NONE, NULL},
	{"root/bash_history", S_IFREG, RESIDUE_NONE, NULL},
	{"root/.ssh/id_ed25519", S_IFREG, RESIDUE_ALL, "ssh"},
	{"root/.ssh/config", S_IFREG, RESIDUE_LOOK, "ssh"},
	{"x/.ssh/authorized_keys", S_IFREG, RESIDUE_ALL, "ssh"},
	{"etc/ssh/ssh_host_rsa_key", S_IFREG, RESIDUE_ALL, "ssh"},
	{"root/.netrc", S_IFLNK, RESIDUE_ALL, "credentials"},
	{"root/.aws/credentials", S_IFREG, RESIDUE_ALL, "credentials"},
	{"root/aws/credentials", S_IFREG, RESIDUE_NONE, NULL},
	{"root/.aws/config", S_IFREG, RESIDUE_NONE, NULL},
	{"root/.docker/config.json", S_IFREG, RESIDUE_ALL, "credentials"},
	{"root/.npmrc", S_IFREG, RESIDUE_LOOK, "credentials"},
	{"work/server.pem", S_IFREG, RESIDUE_LOOK, "private-key"},
	{"work/server.pem", S_IFDIR, RESIDUE_NONE, NULL},
	{"work/tests/certs/server.pem", S_IFREG, RESIDUE_NONE, NULL},
	{"usr/lib/python3/test/x.pem", S_IFREG, RESIDUE_NONE, NULL},
	{"tmp", S_IFDIR, RESIDUE_BELOW, "tmp"},
	{"tmp", S_IFLNK, RESIDUE_NONE, NULL},
	{"work/tmp", S_IFDIR, RESIDUE_NONE, NULL},
	{"run", S_IFDIR, RESIDUE_BELOW, "run"},
	{"work/core", S_IFREG, RESIDUE_LOOK, "core"},
	{"work/core", S_IFDIR, RESIDUE_NONE, NULL},
	{"work/.a.py.swp", S_IFREG, RESIDUE_ALL, "swap"},
	{"work/.a.py.swz", S_IFREG, RESIDUE_NONE, NULL},
	{"work/a.swp", S_IFREG, RESIDUE_NONE, NULL},
	{"work/.#a.py", S_IFLNK, RESIDUE_ALL, "swap"},
	{"work/#a.py#", S_IFREG, RESIDUE_ALL, "swap"},
	{"work/__pycache__", S_IFDIR, RESIDUE_NONE, NULL},
	{"work/.git/logs", S_IFDIR, RESIDUE_NONE, NULL},
	{"", S_IFDIR, RESIDUE_NONE, NULL},
	{"a\xff*", S_IFREG, RESIDUE_NONE, NULL},
};
/* clang-format on */

static void matches(void)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct residue_hit hit = {.rule = NULL};
		enum residue_part part;

		part = residue_match(residue_default(), cases[i].path,
				     cases[i].mode | 0644, &hit);
		ok(part == cases[i].want && (part == RESIDUE_NONE ||
					     !strcmp(hit.rule, cases[i].rule)),
		   "'%s': %d by %s", cases[i].path, part,
		   hit.rule ? hit.rule : "none");
	}
}

static void switches(void)
{
	residue_set set = residue_default();
	struct residue_hit hit;
	struct err e = {0};

	ok(residue_switch(&set, "history", false, &e) == 0 &&
		   !residue_match(set, ".bash_history", S_IFREG, &hit),
	   "a rule is turned off");
	ok(residue_switch(&set, "git", true, &e) == 0 &&
		   residue_match(set, "w/.git/logs", S_IFDIR, &hit) ==
			   RESIDUE_ALL &&
		   residue_match(set, "w/.git/ORIG_HEAD", S_IFREG, &hit) ==
			   RESIDUE_ALL,
	   "a rule is turned on");
	ok(!residue_match(set, "w/.git/HEAD", S_IFREG, &hit), "HEAD stays");
	ok(residue_switch(&set, "nonsense", true, &e) < 0 &&
		   !strcmp(e.code, "bad_value") && strstr(e.msg, "history"),
	   "an unknown rule is refused with those there are");
	ok(residue_rule(0, NULL) && !residue_rule(99, NULL),
	   "rules are listed");
}

static bool looks(const char *path, const void *data, size_t len)
{
	struct residue_hit hit;

	return residue_match(residue_default(), path, S_IFREG, &hit) ==
		       RESIDUE_LOOK &&
	       residue_look(&hit, data, len);
}

static void content(void)
{
	static const char core[20] = {0x7f, 'E', 'L',	   'F', 2,
				      1,    1,	 [16] = 4, 0};
	static const char prog[20] = {0x7f, 'E', 'L',	   'F', 2,
				      1,    1,	 [16] = 2, 0};

	ok(looks("work/a.pem", KEY, strlen(KEY)), "a key");
	ok(!looks("work/a.pem", "-----BEGIN CERTIFICATE-----\n", 28),
	   "a certificate is no key");
	ok(!looks("work/a.pem", "-----BEGIN X\nPRIVATE KEY-----", 29),
	   "nor what only looks like one over two lines");
	ok(!looks("work/a.pem", "", 0), "nor nothing");
	ok(looks("core", core, sizeof(core)), "a core dump");
	ok(!looks("core", prog, sizeof(prog)), "a program is none");
	ok(!looks("core", core, 10), "nor its first bytes");
	ok(looks(".npmrc", "//r/:_authToken=x", 17), "a token of npm");
	ok(!looks(".npmrc", "registry=x", 10), "plain settings of npm");
}

static void secrets(void)
{
	/* clang-format off */
	static const struct { const char *text, *want; } texts[] = {
		{"key = AKIA" "ABCDEFGHIJKLMNOP\n", "AWS access key"},
		{"key = AKIA" "ABCDEFGHIJKLMNO\n", NULL},
		{"xAKIA" "ABCDEFGHIJKLMNOP\n", NULL},
		{"t=ghp_" "abcdefghijklmnopqrstuvwxyz0123456789", "GitHub token"},
		{"t=ghp_" "abcdefghijklmnopqrstuvwxyz", NULL},
		{"a\n" KEY, "private key"},
		{"hello", NULL},
		{"", NULL},
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		is_str(scan_secret(texts[i].text, strlen(texts[i].text)),
		       texts[i].want, "a secret, or not");
}

/* A text of beginnings of tokens costs no more than its length. */
static void beginnings(void)
{
	static char text[SCAN_TEXT_MAX + 1];
	clock_t began = clock();

	for (size_t i = 0; i < SCAN_TEXT_MAX; i++)
		text[i] = "xsk-ant-"[i % 8];
	ok(!scan_secret(text, SCAN_TEXT_MAX), "no token in many beginnings");
	ok(clock() - began < CLOCKS_PER_SEC, "told within a second");
}

static int stop(void *arg, struct err *e)
{
	(void)arg;
	return err_sys(e, ECANCELED, "stop");
}

static void steps(void)
{
	struct fstree *t = fstree_new();
	struct err e = {0};

	is_int(scan_tree(t, NULL, NULL, stop, NULL, &e), -ECANCELED,
	       "a scan without findings can be ended");
	fstree_free(t);
}

int main(void)
{
	matches();
	switches();
	content();
	secrets();
	beginnings();
	steps();
	return tap_done();
}
