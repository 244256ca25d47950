/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/helper.h"
#include "serve.h"
#include "serve/auth.h"
#include "wire/exit.h"
#include "wire/record.h"

/* Nobody else's uid: where none is named, one above all that are given out. */
#define WORKER_UID (HELPER_UID + 2)

int role_user(const char *user, uid_t *ret_uid, gid_t *ret_gid, struct err *e)
{
	const struct passwd *pw;
	char *end;
	unsigned long n;

	*ret_uid = *ret_gid = WORKER_UID;
	if (!user)
		return 0;
	n = strtoul(user, &end, 10);
	if (!*end && n > 0 && n < UINT32_MAX) {
		*ret_uid = *ret_gid = (uid_t)n;
		return 0;
	}
	pw = getpwnam(user);
	if (!pw || pw->pw_uid == 0)
		return err_set(e, -ENOENT, "configuration",
			       "'node.user': no user '%.64s', or root", user);
	*ret_uid = pw->pw_uid;
	*ret_gid = pw->pw_gid;
	return 0;
}

/* What it shows to others: that it fits together, and is for this role. */
static int check_tls(int dirfd, const struct serveconf *conf,
		     const struct serveconf_role *role, struct err *e)
{
	const enum tls_kind kind = role == &conf->node ? TLS_NODE : TLS_CONTROL;
	const struct tls_files files = serveconf_files(conf, role);
	struct tls_pem pem = {0};
	struct tls *t = NULL;
	int r = tls_pem_read(dirfd, &files, &pem, e);

	if (r == 0)
		r = tls_new(&pem, &t, e);
	if (r == 0 && tls_own(t)->kind != kind)
		r = err_set(e, -EINVAL, "configuration",
			    "'%s' is not a %s's certificate", files.cert,
			    tls_kind_name(kind));
	tls_free(t);
	tls_pem_done(&pem);
	return r;
}

/* Does it start here, as far as is asked? */
static bool is_meant(const struct serveconf_role *role, const char *name,
		     const char *only)
{
	return role->nlisten > 0 && (!only || !strcmp(only, name));
}

static int check_conf(int dirfd, const struct serveconf *conf, const char *only,
		      struct err *e)
{
	bool node = is_meant(&conf->node, "node", only);
	bool control = is_meant(&conf->control, "control", only);
	struct auth *auth = NULL;
	uid_t uid;
	gid_t gid;
	int r;

	if (!node && !control)
		return err_set(e, -EINVAL, "configuration",
			       "serve.json has no '%s' with 'listen'",
			       only ? only : "node' and no 'control");
	r = auth_new(conf->clients, &auth, e);
	auth_free(auth);
	if (r == 0)
		r = role_user(conf->user, &uid, &gid, e);
	if (r == 0 && node)
		r = check_tls(dirfd, conf, &conf->node, e);
	if (r == 0 && control)
		r = check_tls(dirfd, conf, &conf->control, e);
	return r;
}

static int tell(const struct serveconf *conf, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r = json_pack_or(&rec, e, "{s:b, s:s, s:s, s:b, s:b}", "ok", 1,
			     "did", "checked", "name", conf->name, "node",
			     conf->node.nlisten > 0, "control",
			     conf->control.nlisten > 0);

	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

int role_check(const char *dir, const char *only, bool told, struct err *e)
{
	auto_close int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct serveconf conf = {0};
	int r;

	if (fd < 0)
		return err_sys(e, errno, "open '%s'", dir);
	r = serveconf_load(fd, &conf, e);
	if (r == 0)
		r = check_conf(fd, &conf, only, e);
	if (r == 0 && told)
		r = tell(&conf, e);
	serveconf_done(&conf);
	return r;
}

int verb_check(const struct args *a, struct err *e)
{
	const char *only = a->nwords > 1 ? a->words[1] : NULL;
	int r;

	if (only && strcmp(only, "node") && strcmp(only, "control"))
		return err_set(e, -EINVAL, "usage",
			       "check: '%.32s' is neither node nor control",
			       only);
	r = role_check(a->words[0], only, true, e);
	return r < 0 ? r : EXIT_OK;
}
