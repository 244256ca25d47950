/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/sig.h"
#include "node.h"
#include "node_worker.h"
#include "serve.h"
#include "sys/confine.h"
#include "wire/exit.h"

#define OUT_MAX (64 * 1024 * 1024) /* a keeper that takes nothing */
#define TICK_MS 500

/* --- keepers ------------------------------------------------------------- */

static void keeping_close(struct keeping *kp)
{
	struct worker *w = kp->worker;

	if (kp->dead)
		return;
	kp->dead = true;
	for (struct keeping **p = &w->keepings; *p; p = &(*p)->next)
		if (*p == kp) {
			*p = kp->next;
			break;
		}
	loop_del(w->loop, &kp->src);
	chan_done(&kp->chan);
	fd_close(kp->chan.fd);
}

/* There may be a keeper still, and the way to it broken. */
static void tell_alone(struct worker *w)
{
	auto_json json_t *line = NULL;

	if (!w->keepings &&
	    json_pack_or(&line, NULL, "{ss}", "event", "alone") == 0)
		(void)!chan_send(&w->ctl, line, NULL, 0, NULL);
}

/* Not from within what its lines led to. */
static void keeping_gone(struct keeping *kp)
{
	struct worker *w = kp->worker;

	keeping_close(kp);
	log_info("a keeper is gone");
	jobs_lost(w, kp);
	free(kp);
	tell_alone(w);
}

static int flush(struct keeping *kp)
{
	if (chan_flush(&kp->chan, NULL) < 0 || kp->chan.out.len > OUT_MAX)
		return -EPIPE;
	return loop_mod(kp->worker->loop, &kp->src,
			kp->chan.out.len ? EPOLLIN | EPOLLOUT : EPOLLIN, NULL);
}

int keeping_send(struct keeping *kp, const json_t *obj, struct err *e)
{
	int r = kp->dead ? -EPIPE : chan_put(&kp->chan, obj, e);

	if (r < 0)
		return r;
	/* That it is gone is seen by its own event; what the kernel had no room
	 * for is tried again there. */
	if (flush(kp) < 0)
		(void)loop_mod(kp->worker->loop, &kp->src, EPOLLIN | EPOLLOUT,
			       NULL);
	return 0;
}

static void on_keeping(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct keeping *kp = s->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = -EAGAIN;

	(void)l;
	if ((events & EPOLLOUT) && flush(kp) < 0)
		r = -EPIPE;
	else if (events & ~(uint32_t)EPOLLOUT)
		r = chan_read(&kp->chan, &e);
	while (chan_lines(&kp->chan, &m, &r, &e))
		job_answer(kp->worker, &m);
	if (r != -EAGAIN)
		keeping_gone(kp);
}

static int keeping_new(struct worker *w, int fd, struct err *e)
{
	struct keeping *kp = calloc(1, sizeof(*kp));
	int r;

	if (!kp)
		return err_sys(e, ENOMEM, "keeper");
	(void)fcntl(fd, F_SETFL, O_NONBLOCK);
	r = loop_add(w->loop, &kp->src, fd, EPOLLIN, on_keeping, kp, e);
	if (r < 0) {
		free(kp);
		return r;
	}
	kp->worker = w;
	kp->chan.fd = fd;
	kp->chan.lossy = true;
	kp->next = w->keepings;
	w->keepings = kp;
	jobs_send(w);
	return 0;
}

/* --- the starter --------------------------------------------------------- */

/* Who has nothing under way finds the next worker when he comes back. */
static void let_go(void *arg, struct client *cl)
{
	(void)arg;
	if (!cl->calls)
		conn_finish(cl->c, NULL);
}

static void settle(struct worker *w)
{
	struct server_stats s;

	if (!w->retiring)
		return;
	server_each(w->server, let_go, NULL);
	s = server_stats(w->server);
	if (s.clients == 0 && s.calls == 0)
		loop_stop(w->loop, 0);
}

static char *text_of(const json_t *o, const char *key)
{
	const char *v = json_str(o, key);

	return *v ? strdup(v) : NULL;
}

static int take_tls(struct worker *w, const json_t *o, struct err *e)
{
	struct tls_pem pem = {text_of(o, "ca"), text_of(o, "cert"),
			      text_of(o, "key"), text_of(o, "crl")};
	int r;

	if (!pem.ca || !pem.cert || !pem.key)
		r = err_set(e, -EINVAL, "configuration",
			    "a certificate is missing");
	else
		r = w->tls ? tls_replace(w->tls, &pem, e)
			   : tls_new(&pem, &w->tls, e);
	tls_pem_done(&pem);
	return r;
}

static int take_clients(struct worker *w, const json_t *o, struct err *e)
{
	struct auth *a;
	int r = auth_new(json_object_get(o, "clients"), &a, e);

	if (r < 0)
		return r;
	auth_free(w->auth);
	w->auth = a;
	serve_recheck(w);
	return 0;
}

static void tell_ready(struct worker *w, int listener)
{
	char address[SERVER_ADDR_MAX] = "";
	auto_json json_t *line = NULL;

	(void)server_bound(listener, address);
	if (json_pack_or(&line, NULL, "{ss ss}", "event", "ready", "address",
			 address) < 0 ||
	    chan_send(&w->ctl, line, NULL, 0, NULL) < 0)
		log_info("could not tell that it is ready");
}

static const unsigned allowed[] = {
#ifdef SYS_epoll_wait
	SYS_epoll_wait,
#endif
	SYS_epoll_pwait,
	SYS_read,
	SYS_write,
	SYS_recvmsg,
	SYS_sendmsg,
	SYS_recvfrom,
	SYS_sendto,
	SYS_epoll_ctl,
	SYS_pread64,
	SYS_close,
	SYS_accept4,
	SYS_clock_gettime,
	SYS_getsockopt,
	SYS_setsockopt,
	SYS_getsockname,
	SYS_getpeername,
	SYS_shutdown,
	SYS_fcntl,
	SYS_ioctl,
	SYS_readv,
	SYS_writev,
	SYS_brk,
	SYS_mmap,
	SYS_munmap,
	SYS_mremap,
	SYS_mprotect,
	SYS_madvise,
	SYS_getrandom,
	SYS_gettimeofday,
	SYS_fstat,
	SYS_ftruncate,
	SYS_lseek,
	SYS_getpid,
	SYS_gettid,
	SYS_getppid,
	SYS_getuid,
	SYS_geteuid,
	SYS_getgid,
	SYS_getegid,
	SYS_futex,
	SYS_rt_sigaction,
	SYS_rt_sigprocmask,
	SYS_rt_sigreturn,
	SYS_tgkill,
	SYS_exit,
	SYS_exit_group,
	SYS_getrusage,
	SYS_sched_yield,
	SYS_clock_nanosleep,
	SYS_restart_syscall,
	SYS_newfstatat,
	SYS_ppoll,
#ifdef SYS_poll
	SYS_poll,
#endif
#ifdef SYS_time
	SYS_time,
#endif
};

/* What this process is from now on, whatever it reads. */
static int confine(const json_t *o, struct err *e)
{
	const char *root = json_str(o, "root");
	int64_t uid = json_int(o, "uid", 0), gid = json_int(o, "gid", 0);
	int r = 0;

	if (geteuid() == 0) {
		if (uid <= 0 || gid <= 0)
			return err_set(e, -EINVAL, "configuration",
				       "no user for the worker");
		if (*root)
			r = confine_root(root, e);
		if (r == 0)
			r = confine_user((uid_t)uid, (gid_t)gid, e);
	}
	return r < 0 ? r
		     : confine_calls(allowed, array_len(allowed), NULL, 0, e);
}

static unsigned limit(const json_t *o, const char *key)
{
	int64_t n = json_int(json_object_get(o, "limits"), key, 0);

	return n > 0 && n < INT32_MAX ? (unsigned)n : 0;
}

static void take_limits(struct worker *w, const json_t *o,
			struct server_conf *conf)
{
	struct conn_limits *n = &w->env.limits;

	n->handshake_ms = limit(o, "handshake_ms");
	n->line_ms = limit(o, "line_ms");
	n->ping_ms = limit(o, "ping_ms");
	n->idle_ms = limit(o, "idle_ms");
	n->stall_ms = limit(o, "stall_ms");
	conf->limits = (struct server_limits){limit(o, "clients"),
					      limit(o, "shaking"),
					      limit(o, "requests"),
					      limit(o, "calls")};
}

static int listen_all(struct worker *w, struct chan_msg *m, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < m->nfds && r == 0; i++) {
		if (i == 0)
			tell_ready(w, m->fds[i]);
		r = server_listen(w->server, &m->fds[i], e);
	}
	return r;
}

static const char *unready(void *arg)
{
	const struct worker *w = arg;

	return w->keepings ? expiry_unfit(w->tls) : "the keeper is away";
}

static uint64_t until_ms(void *arg)
{
	const struct worker *w = arg;

	return tls_own_until_ms(w->tls);
}

/* Before it is confined.  When one worker takes over from another, both have
 * the port for a moment. */
static int open_watch(struct worker *w, const json_t *order, struct err *e)
{
	const char *address = json_str(order, "metrics");
	const struct watch_conf conf = {
		.loop = w->loop,
		.address = *address ? address : NULL,
		.server = w->server,
		.until_ms = until_ms,
		.unready = unready,
		.arg = w,
	};

	return watch_open(&conf, &w->watch, e);
}

static int start(struct worker *w, struct chan_msg *m, struct err *e)
{
	static const char *const able[] = {"run",    "exec",  "file",	"pause",
					   "fork",   "net",   "ps",	"img",
					   "report", "drain", "streams"};
	struct server_conf conf = {.role = "node", .ops = &serve_ops, .arg = w};
	json_t *caps = json_array();
	int r;

	if (w->started || m->nfds == 0 || !w->tls)
		return err_set(e, -EINVAL, "internal", "no way to start");
	if (m->lost) /* on some of its addresses alone */
		return err_set(e, -EMFILE, "no_fds",
			       "no descriptors are left for what it listens "
			       "on");
	snprintf(w->name, sizeof(w->name), "%s", json_str(m->obj, "name"));
	for (size_t i = 0; caps && i < array_len(able); i++)
		json_array_append_new(caps, json_string(able[i]));
	conf.name = w->name;
	conf.capabilities = caps;
	take_limits(w, m->obj, &conf);
	r = conn_env_init(&w->env, w->loop, w->tls, e);
	if (r == 0)
		r = server_new(&w->env, &conf, &w->server, e);
	if (r == 0)
		r = open_watch(w, m->obj, e);
	if (r == 0)
		r = confine(m->obj, e);
	w->started = r == 0;
	return r < 0 ? r : listen_all(w, m, e);
}

static int on_order(struct worker *w, struct chan_msg *m, struct err *e)
{
	const char *op = json_str(m->obj, "op");
	int fd, r;

	if (!strcmp(op, "tls"))
		return take_tls(w, m->obj, e);
	if (!strcmp(op, "clients"))
		return take_clients(w, m->obj, e);
	if (!strcmp(op, "start")) {
		r = start(w, m, e);
		if (r < 0) {
			log_err(e);
			_exit(exit_of(e));
		}
		return 0;
	}
	if (!strcmp(op, "channel")) {
		fd = chan_take(m, "channel");
		r = fd < 0 ? err_sys(e, EMFILE, "the way to a keeper")
			   : keeping_new(w, fd, e);
		if (r < 0 && fd >= 0)
			fd_close(fd);
		if (r < 0)
			tell_alone(w);
		return r;
	}
	if (!strcmp(op, "retire") && w->server) {
		w->retiring = true;
		watch_close(steal_ptr(w->watch)); /* the port is the next's */
		server_retire(w->server);
		settle(w);
	}
	return 0;
}

static void on_ctl(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = chan_read(&w->ctl, &e);

	(void)events;
	while (chan_lines(&w->ctl, &m, &r, &e))
		if (on_order(w, &m, &e) < 0)
			log_err(&e);
	if (r != -EAGAIN)
		loop_stop(l, 0); /* the starter is gone: so are we */
}

/* --- the whole ----------------------------------------------------------- */

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct worker *w = t->arg;

	if (w->tls) {
		tls_sweep(w->tls);
		expiry_check(&w->expiry, w->tls);
	}
	if (w->nwaiting)
		jobs_expire(w);
	if (w->started)
		tell_alone(w); /* until it is heard, and could be mended */
	settle(w);
	loop_timer_set(l, t, clock_ms() + TICK_MS);
}

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)s;
	(void)events;
	loop_stop(l, 0);
}

static int prepare(struct worker *w, struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT};
	int r, fd;

	w->scratch = malloc(STREAM_CHUNK);
	if (!w->scratch)
		return err_sys(e, ENOMEM, "start");
	r = auth_new(NULL, &w->auth, e);
	if (r == 0)
		r = loop_new(&w->loop, e);
	if (r < 0)
		return r;
	fd = sig_block(signals, array_len(signals), e);
	if (fd < 0)
		return fd;
	(void)fcntl(ROLE_FD, F_SETFD, FD_CLOEXEC);
	w->ctl.fd = ROLE_FD;
	w->ctl.lossy = true;
	w->tick = (struct loop_timer){.fn = on_tick, .arg = w};
	loop_timer_set(w->loop, &w->tick, clock_ms() + TICK_MS);
	r = loop_add(w->loop, &w->signals, fd, EPOLLIN, on_signal, w, e);
	return r < 0 ? r
		     : loop_add(w->loop, &w->ctl_src, ROLE_FD, EPOLLIN, on_ctl,
				w, e);
}

int verb_worker(const struct args *a, struct err *e)
{
	static struct worker w;
	int r;

	(void)a;
	proc_raise_files();
	r = prepare(&w, e);
	if (r == 0)
		r = loop_run(w.loop, e);
	return r;
}
