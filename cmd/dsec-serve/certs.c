/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "certs.h"
#include "wire/exit.h"
#include "wire/record.h"

#define PEM_MAX (1024 * 1024)
#define ISSUED	"issued"
#define DAYS	90
#define DAY_MS	86400000ull

/* --- the directory -------------------------------------------------------- */

/* Locked: lists are read, changed and written. */
int certs_open(const char *path, struct certs *ret, struct err *e)
{
	auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct certs c = {.path = path};
	int r;

	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (flock(fd, LOCK_EX) < 0)
		return err_sys(e, errno, "lock '%s'", path);
	r = certs_read(fd, "ca.pem", &c.ca, e);
	if (r == 0)
		r = certs_read(fd, "ca.key", &c.ca_key, e);
	if (r < 0) {
		certs_close(&c);
		return err_wrap(e, r, "the authority of '%s'", path);
	}
	c.dir = steal_fd(&fd);
	*ret = c;
	return 0;
}

void certs_close(struct certs *c)
{
	if (c->ca_key)
		explicit_bzero(c->ca_key, strlen(c->ca_key));
	free(c->ca);
	free(c->ca_key);
	if (c->dir > 0)
		fd_close(c->dir);
	*c = (struct certs){0};
}

int certs_read(int dir, const char *name, char **ret, struct err *e)
{
	size_t len;

	return fd_read_file(dir, name, PEM_MAX, ret, &len, e);
}

int certs_write(int dir, const char *name, const char *text, bool secret,
		struct err *e)
{
	return fd_replace(dir, name, text, strlen(text),
			  FD_REPLACE_SYNC | (secret ? 0 : FD_REPLACE_PUBLIC),
			  e);
}

bool certs_there(int dir, const char *name)
{
	return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A copy of each certificate, so that one whose holder is lost can be revoked
 * by what it was for. */
static int keep_copy(const struct certs *c, const struct tls_ident *id,
		     const char *cert, struct err *e)
{
	auto_close int dir = -1;
	char name[NAME_MAX];

	if (mkdirat(c->dir, ISSUED, 0755) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '" ISSUED "'");
	dir = openat(c->dir, ISSUED,
		     O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0)
		return err_sys(e, errno, "open '" ISSUED "'");
	snprintf(name, sizeof(name), "%s-%s-%llu-%d.pem",
		 tls_kind_name(id->kind), id->name,
		 (unsigned long long)clock_wall_ms(), (int)getpid());
	return certs_write(dir, name, cert, false, e);
}

static int split(const char *prefix, const char *suffix, char *ret,
		 struct err *e)
{
	if (snprintf(ret, PATH_MAX, "%s%s", prefix, suffix) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", prefix);
	return 0;
}

/* Where ${prefix}.pem and .key will be, a path perhaps; neither is there. */
struct pair {
	int dir;
	char cert[PATH_MAX], key[PATH_MAX];
};

static int pair_open(const struct certs *c, const char *prefix,
		     struct pair *ret, struct err *e)
{
	const char *slash = strrchr(prefix, '/');
	const char *name = slash ? slash + 1 : prefix;
	const char *const names[] = {ret->cert, ret->key};
	auto_close int dir = -1;
	char path[PATH_MAX];
	int r = split(prefix, ".pem", path, e);

	if (r == 0)
		r = split(name, ".pem", ret->cert, e);
	if (r == 0)
		r = split(name, ".key", ret->key, e);
	if (r < 0)
		return r;
	path[slash ? slash - prefix : 0] = '\0';
	dir = openat(c->dir,
		     *path   ? path
		     : slash ? "/"
			     : ".",
		     O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	for (size_t i = 0; i < array_len(names); i++)
		if (certs_there(dir, names[i]))
			return err_set(e, -EEXIST, "exists",
				       "'%s%s' is there already", prefix,
				       strrchr(names[i], '.'));
	ret->dir = steal_fd(&dir);
	return 0;
}

static int pair_put(const struct pair *p, const char *cert, const char *key,
		    struct err *e)
{
	int r = certs_write(p->dir, p->key, key, true, e);

	return r < 0 ? r : certs_write(p->dir, p->cert, cert, false, e);
}

unsigned certs_days(const struct args *a)
{
	return a->days >= 0 ? (unsigned)a->days : DAYS;
}

int certs_issue(const struct certs *c, const struct make_cert *want,
		const char *prefix, struct err *e)
{
	struct make_cert as = *want;
	auto_free char *cert = NULL;
	auto_free char *key = NULL;
	struct pair to;
	int r = pair_open(c, prefix, &to, e);

	if (r < 0)
		return r;
	r = make_key(&key, e);
	as.key = key;
	if (r == 0)
		r = make_cert(c->ca, c->ca_key, &as, &cert, e);
	if (r == 0)
		r = keep_copy(c, &want->ident, cert, e);
	if (r == 0)
		r = pair_put(&to, cert, key, e);
	fd_close(to.dir);
	if (key)
		explicit_bzero(key, strlen(key));
	return r;
}

/* --- records -------------------------------------------------------------- */

int certs_told(const char *cert, const char *file, const char *what,
	       struct err *e)
{
	auto_json json_t *rec = NULL;
	struct make_looked look;
	char uri[TLS_URI_MAX];
	int r = make_look(cert, &look, e);

	if (r < 0)
		return r;
	tls_ident_uri(&look.ident, uri);
	r = json_pack_or(&rec, e, "{s:b, s:s, s:s, s:s, s:I}", "ok", 1, "did",
			 what, "file", file, "identity", uri, "until_ms",
			 (json_int_t)look.until_ms);
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

static int tell_file(const struct certs *c, const char *file, const char *what,
		     struct err *e)
{
	auto_free char *cert = NULL;
	int r = certs_read(c->dir, file, &cert, e);

	return r < 0 ? r : certs_told(cert, file, what, e);
}

/* --- issue ---------------------------------------------------------------- */

int certs_ident(enum tls_kind kind, const char *name, struct tls_ident *ret,
		struct err *e)
{
	if (!tls_name_ok(name))
		return err_set(e, -EINVAL, "bad_value",
			       "'%.64s' is no name: letters, digits, '.', '_', "
			       "'-', 64 at most",
			       name);
	*ret = (struct tls_ident){.kind = kind};
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	return 0;
}

int verb_issue(const struct args *a, struct err *e)
{
	const char *name = a->node	? a->node
			   : a->control ? a->control
					: a->client;
	struct make_cert want = {.hosts = a->hosts,
				 .nhosts = a->nhosts,
				 .days = certs_days(a)};
	struct certs c = {0};
	char file[PATH_MAX];
	const char *prefix;
	int r;

	if (!!a->node + !!a->control + !!a->client != 1)
		return err_set(e, -EINVAL, "usage",
			       "one of --node, --control and --client");
	r = certs_ident(a->node	     ? TLS_NODE
			: a->control ? TLS_CONTROL
				     : TLS_CLIENT,
			name, &want.ident, e);
	if (r == 0)
		r = certs_open(a->words[0], &c, e);
	if (r < 0)
		return r;
	prefix = a->out ? a->out : name;
	/* What the caller names is his directory's, not ours. */
	if (a->out && *a->out != '/') {
		char cwd[PATH_MAX];

		if (!getcwd(cwd, sizeof(cwd)) ||
		    snprintf(file, sizeof(file), "%s/%s", cwd, a->out) >=
			    PATH_MAX - 8)
			r = err_sys(e, ENAMETOOLONG, "'%s'", a->out);
		prefix = file;
	}
	if (r == 0)
		r = certs_issue(&c, &want, prefix, e);
	if (r == 0) {
		char pem[PATH_MAX];

		r = split(prefix, ".pem", pem, e);
		if (r == 0)
			r = tell_file(&c, pem, "issued", e);
	}
	certs_close(&c);
	return r < 0 ? r : EXIT_OK;
}

/* --- renew ---------------------------------------------------------------- */

static bool is_due(const struct make_looked *look)
{
	uint64_t now = clock_wall_ms();
	uint64_t life = look->until_ms > look->from_ms
				? look->until_ms - look->from_ms
				: 0;

	return look->from_ms > now || look->until_ms < now ||
	       look->until_ms - now < life / 3;
}

/* As long as it was made for, unless told otherwise. */
static unsigned days_of(const struct args *a, const struct make_looked *look)
{
	uint64_t days = (look->until_ms - look->from_ms) / DAY_MS;

	return a->days >= 0 ? (unsigned)a->days
	       : days > 0   ? (unsigned)days
			    : DAYS;
}

struct renewal {
	const struct args *a;
	const struct certs *c;
	char *crl; /* or NULL */
};

static int renew_one(const struct renewal *n, const char *pem, struct err *e)
{
	const struct args *a = n->a;
	const struct certs *c = n->c;
	char key_name[NAME_MAX + 1];
	auto_free char *cert = NULL;
	auto_free char *key = NULL;
	auto_free char *again = NULL;
	struct make_again want;
	struct make_looked look;
	int r = certs_read(c->dir, pem, &cert, e);

	snprintf(key_name, sizeof(key_name), "%.*s.key", (int)strlen(pem) - 4,
		 pem);
	if (r < 0)
		return r;
	/* Not one of ours, or the authority's own. */
	if (make_look(cert, &look, NULL) < 0 || !certs_there(c->dir, key_name))
		return 0;
	if (n->crl && make_is_revoked(n->crl, cert))
		return certs_told(cert, pem, "revoked", e);
	if (!a->all && !is_due(&look))
		return certs_told(cert, pem, "kept", e);
	r = certs_read(c->dir, key_name, &key, e);
	if (r < 0)
		return r;
	want = (struct make_again){cert, key, days_of(a, &look)};
	r = make_again(c->ca, c->ca_key, &want, &again, e);
	explicit_bzero(key, strlen(key));
	if (r == 0)
		r = keep_copy(c, &look.ident, again, e);
	if (r == 0)
		r = certs_write(c->dir, pem, again, false, e);
	return r < 0 ? err_wrap(e, r, "renew '%s'", pem)
		     : certs_told(again, pem, "renewed", e);
}

static bool is_pem(const char *name)
{
	size_t n = strlen(name);

	return n > 4 && !strcmp(name + n - 4, ".pem");
}

/* fn() for each file of ${sub} that ends in .pem; the first failure is told,
 * the others are done. */
static int each_pem(const struct certs *c, const char *sub,
		    int (*fn)(void *arg, int dir, const char *name,
			      struct err *e),
		    void *arg, struct err *e)
{
	int fd = openat(c->dir, sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct err one = {0};
	struct dirent *de;
	int r = 0;

	if (!d) {
		r = errno;
		if (fd >= 0)
			fd_close(fd);
		return r == ENOENT ? 0 : err_sys(e, r, "read '%s'", sub);
	}
	while ((de = readdir(d)))
		if (is_pem(de->d_name) &&
		    fn(arg, dirfd(d), de->d_name, &one) < 0 && r == 0) {
			*e = one;
			r = one.r;
		}
	return r;
}

static int renew_file(void *arg, int dir, const char *name, struct err *e)
{
	(void)dir;
	return renew_one(arg, name, e);
}

int verb_renew(const struct args *a, struct err *e)
{
	struct certs c = {0};
	struct renewal n = {.a = a, .c = &c};
	int r = certs_open(a->words[0], &c, e);

	if (r == 0 && certs_there(c.dir, "crl.pem"))
		r = certs_read(c.dir, "crl.pem", &n.crl, e);
	if (r == 0)
		r = each_pem(&c, ".", renew_file, &n, e);
	free(n.crl);
	certs_close(&c);
	return r < 0 ? r : EXIT_OK;
}

/* --- revoke --------------------------------------------------------------- */

struct revocation {
	const struct certs *c;
	struct tls_ident ident;
	char *crl;
	unsigned found;
};

static int revoke_cert(struct revocation *v, const char *cert, const char *file,
		       struct err *e)
{
	char *crl = NULL;
	int r = make_crl(v->c->ca, v->c->ca_key, v->crl, cert, &crl, e);

	if (r < 0)
		return err_wrap(e, r, "'%s'", file);
	free(v->crl);
	v->crl = crl;
	v->found++;
	/* Each by itself: what is told is so, whatever the next one comes to.
	 */
	r = certs_write(v->c->dir, "crl.pem", crl, false, e);
	return r < 0 ? r : certs_told(cert, file, "revoked", e);
}

static int revoke_issued(void *arg, int dir, const char *name, struct err *e)
{
	struct revocation *v = arg;
	auto_free char *cert = NULL;
	struct make_looked look;

	if (certs_read(dir, name, &cert, e) < 0 ||
	    make_look(cert, &look, NULL) < 0 ||
	    look.ident.kind != v->ident.kind ||
	    strcmp(look.ident.name, v->ident.name) ||
	    look.until_ms < clock_wall_ms())
		return 0;
	return revoke_cert(v, cert, name, e);
}

/* A file of the caller's, or of the directory: issue answers names of that. */
static int read_word(int dir, const char *word, char **ret, struct err *e)
{
	struct stat ours, his;
	bool there = fstatat(dir, word, &ours, 0) == 0;

	if (stat(word, &his) < 0)
		return certs_read(there ? dir : AT_FDCWD, word, ret, e);
	if (there && (ours.st_dev != his.st_dev || ours.st_ino != his.st_ino))
		return err_set(e, -EINVAL, "usage",
			       "'%s' is one file here and another in that "
			       "directory: give its whole path",
			       word);
	return certs_read(AT_FDCWD, word, ret, e);
}

static int revoke_word(struct revocation *v, const char *word, struct err *e)
{
	auto_free char *cert = NULL;
	unsigned before = v->found;
	int r;

	if (tls_ident_parse(word, strlen(word), &v->ident) < 0) {
		r = read_word(v->c->dir, word, &cert, e);
		return r < 0 ? r : revoke_cert(v, cert, word, e);
	}
	r = each_pem(v->c, ISSUED, revoke_issued, v, e);
	if (r == 0 && v->found == before)
		r = err_set(e, -ENOENT, "not_found",
			    "no certificate that is still good was issued for "
			    "%s",
			    word);
	return r;
}

int verb_revoke(const struct args *a, struct err *e)
{
	struct certs c = {0};
	struct revocation v = {.c = &c};
	int r = certs_open(a->words[0], &c, e);

	if (r == 0 && certs_there(c.dir, "crl.pem"))
		r = certs_read(c.dir, "crl.pem", &v.crl, e);
	for (size_t i = 1; r == 0 && i < a->nwords; i++)
		r = revoke_word(&v, a->words[i], e);
	free(v.crl);
	certs_close(&c);
	return r < 0 ? r : EXIT_OK;
}
