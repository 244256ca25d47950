/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/proc.h"
#include "net/chan.h"
#include "net/transit.h"
#include "sys/netns.h"
#include "wire/exit.h"
#include "wire/record.h"

#define START_MS  20000
#define ANSWER_S  30
#define WORDS_MAX 400 /* of what a helper that did not start has said */

#define TAIL_MAX 40 /* of a line: netns, brace, newline */

struct helper {
	struct chan chan;
	struct buf line; /* of helper_write_attach(), without its end */
};

void helper_free(struct helper *h)
{
	if (!h)
		return;
	chan_done(&h->chan);
	buf_done(&h->line);
	fd_close(h->chan.fd);
	free(h);
}

int helper_fd(const struct helper *h)
{
	return h->chan.fd;
}

static int net_path(char *path, const char *run, const char *name,
		    struct err *e)
{
	int n = snprintf(path, PATH_MAX, "%s/net%s%s", run, *name ? "/" : "",
			 name);

	return n >= PATH_MAX ? err_sys(e, ENAMETOOLONG, "'%s'", run) : 0;
}

/* -ENOENT: nobody serves. */
static int dial(const char *run, int *ret_fd, struct err *e)
{
	const struct timeval wait = {.tv_sec = ANSWER_S};
	char path[PATH_MAX];
	int r;

	r = net_path(path, run, "ctl.sock", e);
	if (r < 0)
		return r;
	r = fd_unix_connect(path, e);
	if (r == -ENOENT || r == -ECONNREFUSED)
		return err_set(e, -ECONNREFUSED, "helper_lost",
			       "the network helper of '%s' does not serve",
			       run);
	if (r < 0)
		return err_wrap(e, r, "network helper");
	(void)setsockopt(r, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	(void)setsockopt(r, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	*ret_fd = r;
	return 0;
}

/* Its last words, without the program's name before them. */
static int told(int words, int status, struct err *e)
{
	char text[WORDS_MAX + 1], *line = text, *nl;
	off_t end = lseek(words, 0, SEEK_END);
	ssize_t n;

	n = pread(words, text, WORDS_MAX,
		  end > WORDS_MAX ? end - WORDS_MAX : 0);
	text[n > 0 ? n : 0] = '\0';
	while ((nl = strchr(line, '\n')) && nl[1])
		line = nl + 1;
	if (nl)
		*nl = '\0';
	if (!strncmp(line, "dsec-net: ", 10))
		line += 10;
	return err_set(e, -EREMOTEIO,
		       status == EXIT_CONFIGURATION ? "configuration"
						    : "helper_lost",
		       "the network helper did not start: %s",
		       *line ? line : "it said nothing");
}

static int spawn(struct err *e)
{
	auto_close int words = memfd_create("words", MFD_CLOEXEC);
	const char *argv[] = {NULL, "--serve", "--background", NULL};
	int fds[3] = {-1, -1, words}, r;
	char program[PATH_MAX];

	if (words < 0)
		return err_sys(e, errno, "memory file");
	r = proc_program("dsec-net", program, sizeof(program), e);
	if (r < 0)
		return r;
	argv[0] = program;
	r = proc_run_fds(argv, fds, START_MS, e);
	return r > 0 ? told(words, r, e) : r;
}

/* One at a time: the second finds what the first has started. */
static int start(const char *run, int *ret_fd, struct err *e)
{
	auto_close int lock = -1;
	char path[PATH_MAX];
	int r;

	r = net_path(path, run, "", e);
	if (r == 0)
		r = fd_mkdir_p(path, 0700, e);
	if (r == 0)
		r = net_path(path, run, "start.lock", e);
	if (r < 0)
		return r;
	lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0)
		return err_sys(e, errno, "open '%s'", path);
	do
		r = flock(lock, LOCK_EX);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(e, errno, "lock '%s'", path);
	r = dial(run, ret_fd, e);
	if (r != -ECONNREFUSED)
		return r;
	r = spawn(e);
	return r < 0 ? r : dial(run, ret_fd, e);
}

int helper_open(const char *run, unsigned flags, struct helper **ret,
		struct err *e)
{
	auto_close int fd = -1;
	struct helper *h;
	int r;

	r = dial(run, &fd, e);
	if (r == -ECONNREFUSED && (flags & HELPER_START))
		r = start(run, &fd, e);
	if (r < 0)
		return r;
	h = calloc(1, sizeof(*h));
	if (!h)
		return err_sys(e, ENOMEM, "network helper");
	h->chan.fd = steal_fd(&fd);
	*ret = h;
	return 0;
}

static int lost(int r, struct err *e)
{
	if (e && (r == -EPIPE || r == -ECONNRESET))
		e->code = "helper_lost";
	return err_wrap(e, r, "network helper");
}

int helper_send(struct helper *h, const json_t *req, const int *fds,
		size_t nfds, struct err *e)
{
	int r = chan_send(&h->chan, req, fds, nfds, e);

	return r < 0 ? lost(r, e) : 0;
}

/* The errno that callers tell apart goes as a number of the table below. */
static int failed(const json_t *rec, struct err *e)
{
	const char *code = json_str(json_object_get(rec, "error"), "code");
	int r = record_to_err(rec, e);

	if (r < 0 && !strcmp(code, "sandbox_unknown"))
		r = -ENOENT;
	else if (r < 0 && !strcmp(code, "unsupported"))
		r = -EOPNOTSUPP;
	else if (r < 0 && !strcmp(code, "transit_unknown"))
		r = -ESTALE;
	if (r < 0 && e)
		e->r = r;
	return r;
}

int helper_answer(struct helper *h, json_t **ret, struct err *e)
{
	auto_chan_msg struct chan_msg m = {0};
	int r;

	while ((r = chan_next(&h->chan, &m, e)) == 0) {
		r = chan_read(&h->chan, e);
		if (r == 0)
			r = err_set(e, -EPIPE, "helper_lost", "it went away");
		if (r == -EAGAIN)
			r = err_set(e, -ETIMEDOUT, "timeout",
				    "no answer in %d s", ANSWER_S);
		if (r < 0)
			break;
	}
	if (r < 0)
		return lost(r, e);
	r = failed(m.obj, e);
	if (r == 0 && ret)
		*ret = steal_ptr(m.obj);
	return r;
}

static int call(struct helper *h, json_t *req, json_t **ret, struct err *e)
{
	int r = helper_send(h, req, NULL, 0, e);

	return r < 0 ? r : helper_answer(h, ret, e);
}

/* --- the operations ------------------------------------------------------ */

struct fd_list {
	json_t *names;
	int fds[HELPER_FDS_MAX];
	size_t n;
};

static int add_fd(struct fd_list *l, int fd, const char *name)
{
	if (fd < 0)
		return 0;
	l->fds[l->n++] = fd;
	return json_array_append_new(l->names, json_string(name));
}

static int add_port(struct fd_list *l, int fd, unsigned port)
{
	char name[16];

	snprintf(name, sizeof(name), "tcp%u", port);
	return add_fd(l, fd, name);
}

static int attach_fds(const struct helper_attach *a, struct fd_list *l)
{
	int r = 0;

	r |= add_fd(l, a->udp53, "udp53");
	r |= add_fd(l, a->tcp53, "tcp53");
	r |= add_fd(l, a->denied, "log");
	r |= add_fd(l, a->names, "names");
	for (size_t i = 0; i < a->nports; i++)
		r |= add_port(l, a->tcp[i], a->ports[i]);
	return r;
}

static int set_str(json_t *o, const char *key, const char *value)
{
	return value ? json_object_set_new(o, key, json_string(value)) : 0;
}

static int set_number(json_t *o, const char *key, uint64_t value)
{
	return value ? json_object_set_new(o, key,
					   json_integer((json_int_t)value))
		     : 0;
}

static int attach_line(const struct helper_attach *a, struct fd_list *l,
		       json_t **ret, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	if (a->nports > NETPOL_LISTEN_MAX)
		return err_set(e, -E2BIG, "too_large", "%zu ports", a->nports);
	r = json_pack_or(&req, e, "{ss ss ss ss sO s[]}", "op", "attach",
			 "sandbox", a->sandbox, "strength",
			 netpol_strength_word(a->strength), "hash", a->hash,
			 "policy", a->policy, "fds");
	if (r < 0)
		return r;
	l->names = json_object_get(req, "fds");
	r = attach_fds(a, l) | set_str(req, "address", a->address) |
	    set_str(req, "iface", a->iface) | set_str(req, "mac", a->mac) |
	    set_number(req, "transit", a->transit) |
	    set_number(req, "netns", a->netns);
	if (a->fresh)
		r |= json_object_set_new(req, "fresh", json_true());
	if (r < 0)
		return err_sys(e, ENOMEM, "attach");
	*ret = steal_ptr(req);
	return 0;
}

int helper_send_attach(struct helper *h, const struct helper_attach *a,
		       struct err *e)
{
	auto_json json_t *req = NULL;
	struct fd_list l = {.names = NULL};
	int r = attach_line(a, &l, &req, e);

	return r < 0 ? r : helper_send(h, req, l.fds, l.n, e);
}

int helper_write_attach(struct helper *h, const struct helper_attach *a,
			struct err *e)
{
	auto_free char *text = NULL;
	auto_json json_t *req = NULL;
	struct fd_list l = {.names = NULL};
	int r = attach_line(a, &l, &req, e);

	if (r < 0)
		return r;
	text = json_dumps(req, JSON_COMPACT);
	buf_done(&h->line);
	/* All but the brace at its end. */
	if (!text || buf_add(&h->line, text, strlen(text) - 1) < 0 ||
	    buf_reserve(&h->line, TAIL_MAX) < 0)
		return err_sys(e, ENOMEM, "attach");
	return 0;
}

int helper_post_attach(struct helper *h, uint64_t netns, const int *fds,
		       size_t n)
{
	char *tail = h->line.data + h->line.len;
	int len = snprintf(tail, TAIL_MAX, ",\"netns\":%" PRIu64 "}\n", netns);

	return chan_write(h->chan.fd, h->line.data, h->line.len + (size_t)len,
			  fds, n);
}

int helper_attach(struct helper *h, const struct helper_attach *a,
		  struct err *e)
{
	int r = helper_send_attach(h, a, e);

	return r < 0 ? r : helper_answer(h, NULL, e);
}

int helper_policy(struct helper *h, const char *sandbox, const json_t *policy,
		  const char *hash, unsigned *ret_cut, struct err *e)
{
	auto_json json_t *req = NULL;
	auto_json json_t *rec = NULL;
	int r;

	r = json_pack_or(&req, e, "{ss ss ss sO}", "op", "policy", "sandbox",
			 sandbox, "hash", hash, "policy", policy);
	if (r == 0)
		r = call(h, req, &rec, e);
	if (r == 0 && ret_cut)
		*ret_cut = (unsigned)json_int(rec, "cut", 0);
	return r;
}

static int ask(struct helper *h, const char *op, const char *sandbox,
	       json_t **ret, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{ss}", "op", op);
	if (r == 0 && set_str(req, "sandbox", sandbox) < 0)
		r = err_sys(e, ENOMEM, "%s", op);
	return r < 0 ? r : call(h, req, ret, e);
}

int helper_detach(struct helper *h, const char *sandbox, struct err *e)
{
	return ask(h, "detach", sandbox, NULL, e);
}

int helper_send_detach(struct helper *h, const char *sandbox, uint64_t netns,
		       struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{ss ss}", "op", "detach", "sandbox",
			 sandbox);
	if (r == 0 && set_number(req, "netns", netns) < 0)
		r = err_sys(e, ENOMEM, "detach");
	return r < 0 ? r : helper_send(h, req, NULL, 0, e);
}

int helper_ports(struct helper *h, const char *sandbox, uint16_t *ret,
		 size_t *ret_n, struct err *e)
{
	auto_json json_t *rec = NULL;
	size_t i, n;
	json_t *v;
	int r;

	r = ask(h, "ports", sandbox, &rec, e);
	if (r < 0)
		return r;
	n = json_array_size(json_object_get(rec, "ports"));
	if (n > HELPER_PORTS_MAX)
		return err_set(e, -EBADMSG, "bad_record", "%zu ports", n);
	json_array_foreach(json_object_get(rec, "ports"), i, v)
		ret[i] = (uint16_t)json_integer_value(v);
	*ret_n = n;
	return 0;
}

int helper_stats(struct helper *h, const char *sandbox, json_t **ret,
		 struct err *e)
{
	return ask(h, "stats", sandbox, ret, e);
}

int helper_list(struct helper *h, json_t **ret, struct err *e)
{
	auto_json json_t *rec = NULL;
	json_t *list;
	int r = ask(h, "list", NULL, &rec, e);

	if (r < 0)
		return r;
	list = json_object_get(rec, "sandboxes");
	if (!json_is_array(list))
		return err_set(e, -EBADMSG, "bad_record", "no list");
	*ret = json_incref(list);
	return 0;
}

static int send_transit(struct helper *h, const struct transit_socks *s,
			struct err *e)
{
	const int fds[] = {s->nft,     s->log, s->dns_udp,
			   s->dns_tcp, s->sni, s->broker};
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{ss s[ssssss]}", "op", "transit", "fds",
			 "nft", "nflog", "dns_udp", "dns_tcp", "sni", "broker");
	if (r == 0)
		r = helper_send(h, req, fds, array_len(fds), e);
	return r < 0 ? r : helper_answer(h, NULL, e);
}

int helper_transit(struct helper *h, int netns, struct err *e)
{
	auto_json json_t *rec = NULL;
	auto_close int fd = netns_socket(netns, AF_UNIX, SOCK_DGRAM, 0, e);
	struct transit_socks socks;
	uint64_t serves;
	int r;

	if (fd < 0)
		return fd;
	r = ask(h, "ping", NULL, &rec, e);
	serves = (uint64_t)json_int(rec, "transit", 0);
	if (r < 0 || (serves && serves == netns_cookie(fd)))
		return r;
	r = transit_socks_make(netns, &socks, e);
	if (r < 0)
		return r;
	r = send_transit(h, &socks, e);
	transit_socks_done(&socks);
	return r;
}

int helper_sweep(struct helper *h, struct err *e)
{
	return ask(h, "sweep", NULL, NULL, e);
}

int helper_ping(struct helper *h, struct err *e)
{
	return ask(h, "ping", NULL, NULL, e);
}
