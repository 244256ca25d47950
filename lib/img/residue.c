/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "img/residue.h"

enum rule {
	CACHE,
	APT,
	HISTORY,
	SSH,
	CREDENTIALS,
	PRIVATE_KEY,
	TMP,
	RUN,
	CORE,
	SWAP,
	PYCACHE,
	GIT,
	RULES
};

/* clang-format off */
static const struct {
	const char *name, *what;
	bool off; /* unless asked for */
} rules[RULES] = {
	[CACHE] = {"cache", "~/.cache (pip too), caches of npm, yarn, cargo", false},
	[APT] = {"apt", "fetched packages and package lists", false},
	[HISTORY] = {"history", "histories of shells, interpreters, editors", false},
	[SSH] = {"ssh", "SSH keys, authorized and known hosts", false},
	[CREDENTIALS] = {"credentials", ".netrc, .git-credentials, .aws, registry and cloud logins", false},
	[PRIVATE_KEY] = {"private-key", "*.pem and *.key that hold a private key, but for tests' own", false},
	[TMP] = {"tmp", "what is in /tmp and /var/tmp", false},
	[RUN] = {"run", "what is in /run", false},
	[CORE] = {"core", "core dumps", false},
	[SWAP] = {"swap", "swap and lock files of editors", false},
	[PYCACHE] = {"pycache", "__pycache__ (off)", true},
	[GIT] = {"git", "what in .git leads beyond HEAD: reflogs, remote refs, stashes (off)", true},
};

/* What a file must hold for a pattern to mean it. */
enum look { ANY, KEY, NPM_TOKEN, CORE_DUMP };

enum kind { FILES = 1, DIRS = 2, BOTH = 3, BELOW = 4 | 2 };

static const struct pattern {
	enum rule rule;
	enum kind kind;
	enum look look;
	const char *text;
} patterns[] = {
	{CACHE, BELOW, ANY, "/root/.cache"},
	{CACHE, BELOW, ANY, "/home/*/.cache"},
	{CACHE, DIRS, ANY, ".npm/_cacache"},
	{CACHE, DIRS, ANY, ".npm/_logs"},
	{CACHE, DIRS, ANY, ".yarn/cache"},
	{CACHE, DIRS, ANY, ".cargo/registry/cache"},
	{CACHE, BELOW, ANY, "/var/cache/dnf"},
	{CACHE, BELOW, ANY, "/var/cache/yum"},
	{CACHE, BELOW, ANY, "/var/cache/apk"},
	{APT, FILES, ANY, "/var/cache/apt/archives/*.deb"},
	{APT, BELOW, ANY, "/var/cache/apt/archives/partial"},
	{APT, FILES, ANY, "/var/cache/apt/*.bin"},
	{APT, BELOW, ANY, "/var/lib/apt/lists"},
	{HISTORY, FILES, ANY, ".*_history"},
	{HISTORY, FILES, ANY, ".lesshst"},
	{HISTORY, FILES, ANY, ".viminfo"},
	{HISTORY, FILES, ANY, ".wget-hsts"},
	{HISTORY, FILES, ANY, ".local/share/fish/fish_history"},
	{HISTORY, FILES, ANY, ".local/share/nano/search_history"},
	{SSH, FILES, ANY, ".ssh/id_*"},
	{SSH, FILES, ANY, ".ssh/authorized_keys*"},
	{SSH, FILES, ANY, ".ssh/known_hosts*"},
	{SSH, FILES, KEY, ".ssh/*"},
	{SSH, FILES, ANY, "/etc/ssh/ssh_host_*_key*"},
	{CREDENTIALS, FILES, ANY, ".netrc"},
	{CREDENTIALS, FILES, ANY, ".git-credentials"},
	{CREDENTIALS, FILES, ANY, ".config/git/credentials"},
	{CREDENTIALS, FILES, ANY, ".aws/credentials"},
	{CREDENTIALS, DIRS, ANY, ".aws/sso"},
	{CREDENTIALS, FILES, ANY, ".docker/config.json"},
	{CREDENTIALS, FILES, ANY, ".config/containers/auth.json"},
	{CREDENTIALS, FILES, ANY, ".pypirc"},
	{CREDENTIALS, FILES, NPM_TOKEN, ".npmrc"},
	{CREDENTIALS, FILES, ANY, ".pgpass"},
	{CREDENTIALS, FILES, ANY, ".kube/config"},
	{CREDENTIALS, FILES, ANY, ".config/gh/hosts.yml"},
	{CREDENTIALS, DIRS, ANY, ".config/gcloud"},
	{CREDENTIALS, FILES, ANY, ".azure/*.json"},
	{CREDENTIALS, FILES, ANY, ".cargo/credentials*"},
	{CREDENTIALS, FILES, ANY, ".gem/credentials"},
	{CREDENTIALS, FILES, ANY, ".huggingface/token"},
	{CREDENTIALS, FILES, ANY, ".cache/huggingface/token"},
	{CREDENTIALS, FILES, ANY, ".vault-token"},
	{CREDENTIALS, DIRS, ANY, ".gnupg/private-keys-v1.d"},
	{PRIVATE_KEY, FILES, KEY, "*.pem"},
	{PRIVATE_KEY, FILES, KEY, "*.key"},
	{PRIVATE_KEY, FILES, KEY, "/etc/ssl/private/*"},
	{TMP, BELOW, ANY, "/tmp"},
	{TMP, BELOW, ANY, "/var/tmp"},
	{RUN, BELOW, ANY, "/run"},
	{CORE, FILES, CORE_DUMP, "core"},
	{CORE, FILES, CORE_DUMP, "core.*"},
	{CORE, FILES, CORE_DUMP, "*.core"},
	{SWAP, FILES, ANY, ".*.sw[a-p]"},
	{SWAP, FILES, ANY, ".#*"},
	{SWAP, FILES, ANY, "#*#"},
	{PYCACHE, DIRS, ANY, "__pycache__"},
	{GIT, DIRS, ANY, ".git/logs"},
	{GIT, DIRS, ANY, ".git/refs/remotes"},
	{GIT, DIRS, ANY, ".git/refs/original"},
	{GIT, DIRS, ANY, ".git/lost-found"},
	{GIT, DIRS, ANY, ".git/rebase-merge"},
	{GIT, DIRS, ANY, ".git/rebase-apply"},
	{GIT, FILES, ANY, ".git/refs/stash"},
	{GIT, FILES, ANY, ".git/*_HEAD"},
};

/* Below these, keys are what tests are run with. */
static const char *const test_dirs[] = {
	"test", "tests", "testing", "testdata", "fixtures", "examples", "certs",
	"t",
};
/* clang-format on */

residue_set residue_default(void)
{
	residue_set set = 0;

	for (unsigned i = 0; i < RULES; i++)
		if (!rules[i].off)
			set |= (residue_set)1 << i;
	return set;
}

int residue_switch(residue_set *set, const char *rule, bool on, struct err *e)
{
	char names[256];
	size_t n = 0;

	for (unsigned i = 0; i < RULES; i++) {
		residue_set bit = (residue_set)1 << i;

		if (!strcmp(rules[i].name, rule)) {
			*set = on ? *set | bit : *set & ~bit;
			return 0;
		}
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s",
				      i ? ", " : "", rules[i].name);
	}
	return err_set(e, -EINVAL, "bad_value",
		       "no residue rule '%.32s': there are %s", rule, names);
}

const char *residue_rule(size_t i, const char **ret_what)
{
	if (i >= RULES)
		return NULL;
	if (ret_what)
		*ret_what = rules[i].what;
	return rules[i].name;
}

/* One component each; '*' takes any bytes, "[a-p]" one of a range. */
static bool glob(const char *pat, size_t plen, const char *s, size_t slen)
{
	size_t p = 0, i = 0, star = SIZE_MAX, mark = 0;

	while (i < slen) {
		if (p < plen && pat[p] == '*') {
			star = p++;
			mark = i;
		} else if (p + 4 < plen && pat[p] == '[' && pat[p + 4] == ']' &&
			   s[i] >= pat[p + 1] && s[i] <= pat[p + 3]) {
			p += 5;
			i++;
		} else if (p < plen && pat[p] != '[' && pat[p] == s[i]) {
			p++;
			i++;
		} else if (star != SIZE_MAX) {
			p = star + 1;
			i = ++mark;
		} else {
			return false;
		}
	}
	while (p < plen && pat[p] == '*')
		p++;
	return p == plen;
}

/* The last component of s[0..*len): *len becomes what stands before its '/'. */
static const char *last(const char *s, size_t *len, size_t *ret_len)
{
	const char *slash = *len ? memrchr(s, '/', *len) : NULL;
	const char *name = slash ? slash + 1 : s;

	*ret_len = (size_t)(s + *len - name);
	*len = slash ? (size_t)(slash - s) : 0;
	return name;
}

static bool fits(const char *pat, const char *path)
{
	size_t plen = strlen(pat), len = strlen(path), pn, n;
	bool anchored = *pat == '/';

	if (anchored) {
		pat++;
		plen--;
	}
	while (plen > 0) {
		const char *pc = last(pat, &plen, &pn);
		const char *c = last(path, &len, &n);

		/* Most end here, at the first byte of the last component. */
		if (n == 0 || (pc[0] != '*' && pc[0] != c[0]) ||
		    !glob(pc, pn, c, n))
			return false;
	}
	return !anchored || len == 0;
}

static bool of_tests(const char *path)
{
	size_t len = strlen(path), n;

	last(path, &len, &n);
	while (len > 0) {
		const char *c = last(path, &len, &n);

		for (size_t i = 0; i < array_len(test_dirs); i++)
			if (strlen(test_dirs[i]) == n &&
			    !memcmp(test_dirs[i], c, n))
				return true;
		if (len == 0 && n == 3 && !memcmp(c, "usr", 3))
			return true;
	}
	return false;
}

static enum residue_part part_of(const struct pattern *p, mode_t mode)
{
	bool dir = S_ISDIR(mode);

	if (p->kind == BELOW)
		return dir ? RESIDUE_BELOW : RESIDUE_NONE;
	/* A whiteout is not a file: it says that there is none. */
	if (!(p->kind & (dir ? DIRS : FILES)) || S_ISCHR(mode) || S_ISBLK(mode))
		return RESIDUE_NONE;
	if (p->look == ANY)
		return RESIDUE_ALL;
	return S_ISREG(mode) ? RESIDUE_LOOK : RESIDUE_NONE;
}

enum residue_part residue_match(residue_set set, const char *path, mode_t mode,
				struct residue_hit *ret)
{
	for (unsigned i = 0; i < array_len(patterns); i++) {
		const struct pattern *p = &patterns[i];
		enum residue_part part;

		if (!(set >> p->rule & 1) || !fits(p->text, path))
			continue;
		part = part_of(p, mode);
		if (part == RESIDUE_NONE ||
		    (p->rule == PRIVATE_KEY && of_tests(path)))
			continue;
		*ret = (struct residue_hit){rules[p->rule].name, part, i};
		return part;
	}
	return RESIDUE_NONE;
}

bool residue_is_key(const void *data, size_t len)
{
	static const char begin[] = "-----BEGIN ", end[] = "PRIVATE KEY-----";
	const char *at = data, *stop = at + len;

	while ((at = memmem(at, (size_t)(stop - at), begin,
			    sizeof(begin) - 1))) {
		const char *nl;
		size_t n;

		at += sizeof(begin) - 1;
		nl = memchr(at, '\n', (size_t)(stop - at));
		n = (size_t)((nl ? nl : stop) - at);
		if (memmem(at, n, end, sizeof(end) - 1))
			return true;
	}
	return false;
}

static bool is_core(const unsigned char *d, size_t len)
{
	return len >= 18 && !memcmp(d, "\177ELF", 4) &&
	       (d[5] == 2 ? d[17] : d[16]) == 4; /* ET_CORE */
}

bool residue_look(const struct residue_hit *hit, const void *data, size_t len)
{
	static const char *const tokens[] = {"_authToken",
					     "_auth=", "_password"};

	switch (patterns[hit->pattern].look) {
	case KEY:
		return residue_is_key(data, len);
	case CORE_DUMP:
		return is_core(data, len);
	case NPM_TOKEN:
		for (size_t i = 0; i < array_len(tokens); i++)
			if (memmem(data, len, tokens[i], strlen(tokens[i])))
				return true;
		return false;
	default:
		return true;
	}
}
