/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "certs.h"
#include "wire/exit.h"

#define CA_DAYS	     3650
#define NODE_PORT    7444
#define CONTROL_PORT 7443
#define CLIENT	     "admin"

/* The machine's, as far as it is a name of ours. */
static void own_name(char *ret, size_t size)
{
	char host[256] = "";
	size_t n;

	(void)gethostname(host, sizeof(host) - 1);
	n = strcspn(host, ".");
	snprintf(ret, size, "%.*s", (int)(n < 63 ? n : 63), host);
	if (!tls_name_ok(ret))
		snprintf(ret, size, "n1");
}

static int make_authority(int dir, const char *name, struct err *e)
{
	auto_free char *key = NULL;
	auto_free char *ca = NULL;
	auto_free char *crl = NULL;
	char cn[TLS_NAME_MAX + 16];
	int r = make_key(&key, e);

	if (r < 0)
		return r;
	snprintf(cn, sizeof(cn), "dsec of %s", name);
	r = make_ca(key, cn, CA_DAYS, &ca, e);
	if (r == 0)
		r = make_crl(ca, key, NULL, NULL, &crl, e);
	if (r == 0)
		r = certs_write(dir, "ca.key", key, true, e);
	if (r == 0)
		r = certs_write(dir, "crl.pem", crl, false, e);
	if (r == 0)
		r = certs_write(dir, "ca.pem", ca, false, e);
	explicit_bzero(key, strlen(key));
	return r;
}

static int issue(const struct certs *c, const struct args *a,
		 enum tls_kind kind, const char *name, struct err *e)
{
	static const char *const local[] = {"localhost", "127.0.0.1", "::1"};
	const char *hosts[ARG_HOSTS_MAX + 4];
	struct make_cert want = {.hosts = hosts, .days = certs_days(a)};
	const char *prefix = tls_kind_name(kind);
	auto_free char *cert = NULL;
	char file[32];
	int r = certs_ident(kind, name, &want.ident, e);

	for (size_t i = 0; kind != TLS_CLIENT && i < array_len(local); i++)
		hosts[want.nhosts++] = local[i];
	for (size_t i = 0; kind != TLS_CLIENT && i < a->nhosts; i++)
		hosts[want.nhosts++] = a->hosts[i];
	if (r == 0)
		r = certs_issue(c, &want, prefix, e);
	snprintf(file, sizeof(file), "%s.pem", prefix);
	if (r == 0)
		r = certs_read(c->dir, file, &cert, e);
	return r < 0 ? r : certs_told(cert, file, "issued", e);
}

static json_t *configuration(const char *name, const char *user)
{
	char node[32], control[32], client[TLS_URI_MAX];
	const struct tls_ident id = {TLS_CLIENT, CLIENT};
	json_t *j;

	snprintf(node, sizeof(node), "127.0.0.1:%d", NODE_PORT);
	snprintf(control, sizeof(control), "127.0.0.1:%d", CONTROL_PORT);
	tls_ident_uri(&id, client);
	j = json_pack("{s:i, s:s, s:{s:[s]}, s:{s:[s], s:[{s:s, s:s}]}, "
		      "s:[{s:s, s:s, s:[s]}]}",
		      "v", 1, "name", name, "node", "listen", node, "control",
		      "listen", control, "nodes", "name", name, "address", node,
		      "clients", "uri", client, "project", "root", "operations",
		      "all");
	if (j && user)
		json_object_set_new(json_object_get(j, "node"), "user",
				    json_string(user));
	return j;
}

static int write_json(int dir, const char *file, const json_t *j, struct err *e)
{
	auto_free char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
	size_t len;

	if (!text)
		return err_sys(e, ENOMEM, "'%s'", file);
	len = strlen(text);
	text[len] = '\n'; /* in place of the NUL */
	return fd_replace(dir, file, text, len + 1,
			  FD_REPLACE_SYNC | FD_REPLACE_PUBLIC, e);
}

/* What a client needs to know; files are those beside it. */
static int write_client(int dir, struct err *e)
{
	auto_json json_t *j = NULL;
	char control[32];

	snprintf(control, sizeof(control), "127.0.0.1:%d", CONTROL_PORT);
	j = json_pack("{s:[s], s:s, s:s, s:s}", "addresses", control,
		      "certificate", "client.pem", "key", "client.key", "ca",
		      "ca.pem");
	return write_json(dir, "client.json", j, e);
}

static int write_conf(int dir, const char *name, const struct args *a,
		      struct err *e)
{
	auto_json json_t *j = configuration(name, a->user);

	return write_json(dir, "serve.json", j, e);
}

static int find_user(const char *user, const struct passwd **ret, struct err *e)
{
	*ret = user ? getpwnam(user) : NULL;
	if (user && !*ret)
		return err_set(
			e, -ENOENT, "user_unknown",
			"there is no user '%.64s': useradd --system %.64s "
			"makes one",
			user, user);
	return 0;
}

/* The control is not root, and its key is nobody else's. */
static int give_key(int dir, const char *user, struct err *e)
{
	const struct passwd *pw;
	int r = find_user(user, &pw, e);

	if (r < 0 || !pw)
		return r;
	if (fchownat(dir, "control.key", pw->pw_uid, pw->pw_gid,
		     AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "give control.key to %.64s", user);
	return 0;
}

static int fill(int dir, const struct args *a, const char *name, struct err *e)
{
	struct certs c = {0};
	int r = make_authority(dir, name, e);

	if (r == 0)
		r = certs_open(a->words[0], &c, e);
	if (r == 0)
		r = issue(&c, a, TLS_NODE, name, e);
	if (r == 0)
		r = issue(&c, a, TLS_CONTROL, name, e);
	if (r == 0)
		r = issue(&c, a, TLS_CLIENT, CLIENT, e);
	if (r == 0)
		r = give_key(dir, a->user, e);
	if (r == 0)
		r = write_client(dir, e);
	/* Last: with it the directory is one. */
	if (r == 0)
		r = write_conf(dir, name, a, e);
	certs_close(&c);
	return r;
}

int verb_init(const struct args *a, struct err *e)
{
	auto_close int dir = -1;
	char name[TLS_NAME_MAX + 1];
	const struct passwd *pw;
	int r;

	own_name(name, sizeof(name));
	if (a->name && !tls_name_ok(a->name))
		return err_set(e, -EINVAL, "bad_value", "'%.64s' is no name",
			       a->name);
	if (a->name)
		snprintf(name, sizeof(name), "%s", a->name);
	r = find_user(a->user, &pw, e); /* before anything is made */
	if (r == 0)
		r = fd_mkdir_p(a->words[0], 0755, e);
	if (r < 0)
		return r;
	dir = open(a->words[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", a->words[0]);
	if (certs_there(dir, "ca.pem") || certs_there(dir, "serve.json"))
		return err_set(e, -EEXIST, "exists",
			       "'%s' has an authority already: renew, issue",
			       a->words[0]);
	r = fill(dir, a, name, e);
	return r < 0 ? r : EXIT_OK;
}
