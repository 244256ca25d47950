/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/sig.h"
#include "control.h"
#include "sys/confine.h"
#include "wire/exit.h"

#define TICK_MS 1000

/* --- what may change
 * ------------------------------------------------------------ */

static int load_tls(struct control *c, const struct serveconf *conf,
		    struct err *e)
{
	const struct tls_files files = serveconf_files(conf, &conf->control);
	struct tls_pem pem = {0};
	struct tls *t = NULL;
	int r = tls_pem_read(c->dir, &files, &pem, e);

	if (r == 0)
		r = tls_new(&pem, &t, e);
	if (r == 0 && tls_own(t)->kind != TLS_CONTROL)
		r = err_set(e, -EINVAL, "configuration",
			    "'%s' is not a control's certificate", files.cert);
	if (r == 0 && c->tls)
		r = tls_replace(c->tls, &pem, e);
	else if (r == 0)
		c->tls = steal_ptr(t);
	tls_free(t);
	tls_pem_done(&pem);
	return r;
}

/* All of it, or nothing changes. */
static int load(struct control *c, struct err *e)
{
	struct serveconf conf = {0};
	struct auth *auth = NULL;
	int r = serveconf_load(c->dir, &conf, e);

	if (r == 0 && conf.control.nlisten == 0)
		r = err_set(e, -EINVAL, "configuration",
			    "serve.json has no 'control'");
	if (r == 0)
		r = auth_new(conf.clients, &auth, e);
	if (r == 0)
		r = load_tls(c, &conf, e);
	if (r < 0) {
		serveconf_done(&conf);
		auth_free(auth);
		return r;
	}
	auth_free(c->auth);
	serveconf_done(&c->conf);
	c->auth = auth;
	c->conf = conf;
	c->stamp = serveconf_stamp(c->dir, &c->conf, &c->conf.control);
	control_recheck(c);
	return members_load(c, e);
}

static void reload(struct control *c)
{
	struct err e = {0};

	if (load(c, &e) == 0) {
		log_info("configuration and certificates were taken over");
		return;
	}
	log_error("what changed is not taken over: %s", e.msg);
	if (e.infra)
		c->stamp = 0; /* what the machine lacked it may have soon */
}

/* --- events
 * ------------------------------------------------------------------- */

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct control *c = t->arg;
	uint64_t stamp = serveconf_stamp(c->dir, &c->conf, &c->conf.control);

	if (stamp != c->stamp) {
		c->stamp = stamp; /* once for each change, even a wrong one */
		reload(c);
	}
	tls_sweep(c->tls);
	expiry_check(&c->expiry, c->tls);
	members_tick(c);
	placer_tick(c);
	loop_timer_set(l, t, clock_ms() + TICK_MS);
}

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct control *c = s->arg;
	struct signalfd_siginfo si;

	(void)events;
	while (read(s->fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		if (si.ssi_signo != SIGHUP) {
			loop_stop(l, 0);
			continue;
		}
		audit_moved(c->audit);
		reload(c);
	}
}

/* --- starting
 * ------------------------------------------------------------------- */

static int listen_all(struct control *c, char *ret_first, struct err *e)
{
	const struct serveconf_role *role = &c->conf.control;
	int r = 0, fd;

	for (size_t i = 0; r == 0 && i < role->nlisten; i++) {
		r = server_bind(role->listen[i], 0, &fd, e);
		if (r < 0)
			return r;
		if (i == 0)
			(void)server_bound(fd, ret_first);
		r = server_listen(c->server, &fd, e);
	}
	return r;
}

/* There is nothing that it would need root for. Without another user it is root
 * still, who owns its key and logs, but may no more than any user. */
static int drop(const char *user, struct err *e)
{
	uid_t uid;
	gid_t gid;
	int r;

	if (geteuid() != 0)
		return confine_state(e);
	if (!user) {
		log_info("it runs as root, without capabilities: "
			 "'node.user' names another user, or --user of init");
		r = confine_caps(0, e);
		return r < 0 ? r : confine_state(e);
	}
	r = role_user(user, &uid, &gid, e);
	return r < 0 ? r : confine_user(uid, gid, e);
}

static int open_server(struct control *c, char *address, struct err *e)
{
	struct server_conf conf = {
		.role = "control",
		.limits = c->conf.server_limits,
		.ops = &control_ops,
		.arg = c,
	};
	int r;

	c->capabilities = json_pack("[s, s, s, s, s, s, s]", "run", "exec",
				    "pause", "fork", "net", "ps", "img");
	conf.capabilities = c->capabilities;
	conf.name = tls_own(c->tls)->name;
	c->env.limits = c->conf.conn_limits;
	r = conn_env_init(&c->env, c->loop, c->tls, e);
	if (r == 0)
		r = server_new(&c->env, &conf, &c->server, e);
	return r < 0 ? r : listen_all(c, address, e);
}

static void on_watch(void *arg, struct watch *w)
{
	struct control *c = arg;

	const struct member *m = NULL;

	while ((m = member_node(c, m)))
		watch_node(w, m->name, member_state_word(member_state(m)),
			   member_state(m) == MEMBER_LIVE ? m->report : NULL);
}

/* It is when it can place something. */
static const char *unready(void *arg)
{
	struct control *c = arg;
	struct member *m = member_node(c, NULL);

	if (expiry_unfit(c->tls))
		return expiry_unfit(c->tls);
	while (m && member_state(m) != MEMBER_LIVE)
		m = member_node(c, m);
	return m ? NULL : "no node is live";
}

static uint64_t until_ms(void *arg)
{
	const struct control *c = arg;

	return tls_own_until_ms(c->tls);
}

static int open_watch(struct control *c, struct err *e)
{
	const struct watch_conf conf = {
		.loop = c->loop,
		.address = c->conf.control.metrics,
		.server = c->server,
		.refresh = on_watch,
		.until_ms = until_ms,
		.unready = unready,
		.arg = c,
	};

	return watch_open(&conf, &c->watch, e);
}

static int start(struct control *c, const char *dir, char *address,
		 struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	int fd, r;

	c->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dir < 0)
		return err_sys(e, errno, "open '%s'", dir);
	proc_raise_files();
	r = loop_new(&c->loop, e);
	if (r == 0)
		r = load(c, e);
	if (r < 0)
		return r;
	snprintf(c->run_id, sizeof(c->run_id), "%.8s-%llx",
		 tls_own(c->tls)->name,
		 (unsigned long long)clock_wall_ms() & 0xffffffffff);
	r = open_server(c, address, e);
	if (r == 0)
		r = open_watch(c, e);
	if (r == 0)
		r = drop(c->conf.user, e);
	if (r == 0)
		r = control_audit_open(c, dir, e);
	if (r == 0)
		r = placer_open(c, e);
	if (r < 0)
		return r;
	fd = sig_block(signals, array_len(signals), e);
	if (fd < 0)
		return fd;
	r = loop_add(c->loop, &c->signals, fd, EPOLLIN, on_signal, c, e);
	c->tick = (struct loop_timer){.fn = on_tick, .arg = c};
	loop_timer_set(c->loop, &c->tick, clock_ms());
	return r;
}

int verb_control(const struct args *a, struct err *e)
{
	struct control *c = calloc(1, sizeof(*c));
	char address[SERVER_ADDR_MAX] = "";
	char line[SERVER_ADDR_MAX + 16];
	int r;

	if (!c)
		return err_sys(e, ENOMEM, "start");
	r = start(c, a->words[0], address, e);
	if (r < 0) {
		serve_ready(a->ready_fd, e->msg);
		return r;
	}
	snprintf(line, sizeof(line), "ready %s", address);
	serve_ready(a->ready_fd, line);
	log_info("%s serves on %s", tls_own(c->tls)->name, address);
	r = loop_run(c->loop, e);
	/* There is no other state to be saved, and nobody to wait for. */
	audit_close(c->audit);
	return r < 0 ? r : EXIT_OK;
}
