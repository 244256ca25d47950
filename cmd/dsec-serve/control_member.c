/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "control.h"
#include "wire/record.h"

#define AHEAD_MAX      (8 * 1024 * 1024) /* that a member has not taken yet */
#define BACKOFF_MS     200
#define BACKOFF_MAX_MS 3000
#define REPORT_MS      1000
#define LATE_MS	       5000  /* a report that does not come: is it there? */
#define SILENT_MS      10000 /* it says nothing at all: connect anew */
#define PEER_MS	       5000  /* between asking a control which nodes it knows */
#define LOOKUPS_MAX    32    /* names that are resolved at once */

static void connect_to(struct member *m);

static void stop_lookup(struct member *m)
{
	if (!m->lookup)
		return;
	lookup_free(steal_ptr(m->lookup));
	m->c->lookups--;
}

/* --- asks ------------------------------------------------------------------
 */

static struct query **bucket(struct member *m, int64_t n)
{
	return &m->asks[(uint64_t)n % ASK_BUCKETS];
}

static struct query *find_ask(struct member *m, const json_t *id)
{
	struct query *a;

	if (!json_is_integer(id))
		return NULL;
	for (a = *bucket(m, json_integer_value(id)); a; a = a->next)
		if (json_equal(a->id, id))
			return a;
	return NULL;
}

static void unlink_ask(struct query *a)
{
	*a->pprev = a->next;
	if (a->next)
		a->next->pprev = a->pprev;
	a->m->nasks--;
}

static void free_ask(struct query *a)
{
	unlink_ask(a);
	json_decref(a->id);
	free(a);
}

int member_gone(const struct member *m, struct err *e)
{
	if (member_state(m) == MEMBER_LOST)
		err_set(e, -EHOSTDOWN, "node_lost",
			"node %s has not been seen for %u s", m->name,
			m->c->conf.lost_ms / 1000);
	else
		err_set(e, -EHOSTUNREACH, "node_away",
			"node %s cannot be reached now", m->name);
	if (!e)
		return -EHOSTUNREACH;
	e->infra = true;
	e->retry_after_ms = member_state(m) == MEMBER_LOST ? 0 : 1000;
	return e->r;
}

int query_new(struct member *m, json_t *req, const struct query_ops *ops,
	      void *arg, struct query **ret, struct err *e)
{
	struct query *a;
	int64_t n;
	int r;

	if (!m->up)
		return member_gone(m, e);
	if (conn_unsent(m->conn) > AHEAD_MAX) {
		err_set(e, -EBUSY, "busy", "node %s has much to read", m->name);
		if (e)
			e->retry_after_ms = 500;
		return -EBUSY;
	}
	a = calloc(1, sizeof(*a));
	n = ++m->c->next_ask;
	if (!a)
		return err_sys(e, ENOMEM, "request");
	a->m = m;
	a->ops = ops;
	a->arg = arg;
	a->id = json_integer(n);
	if (!a->id || json_object_set(req, "id", a->id) < 0) {
		json_decref(a->id);
		free(a);
		return err_sys(e, ENOMEM, "request");
	}
	a->next = *bucket(m, n);
	a->pprev = bucket(m, n);
	if (a->next)
		a->next->pprev = &a->next;
	*a->pprev = a;
	m->nasks++;
	r = conn_put(m->conn, req, e);
	if (r < 0) {
		free_ask(a);
		return r == -EMSGSIZE ? r : member_gone(m, e);
	}
	*ret = a;
	return 0;
}

static void tell(struct query *a, json_t *line)
{
	if (a->m->up && line)
		(void)conn_put(a->m->conn, line, NULL);
	json_decref(line);
}

void query_drop(struct query *a)
{
	tell(a, json_pack("{s:O, s:s}", "id", a->id, "event", "leave"));
	free_ask(a);
}

void query_cancel(struct query *a)
{
	tell(a,
	     json_pack("{s:s%, s:O}", "id", "c", (size_t)1, "cancel", a->id));
}

static void lose_asks(struct member *m)
{
	struct query *a;

	for (size_t i = 0; i < ASK_BUCKETS; i++)
		while ((a = m->asks[i])) {
			const struct query_ops *ops = a->ops;
			void *arg = a->arg;

			/* Out of the list first: what it does may ask anew. */
			unlink_ask(a);
			ops->lost(arg, a);
			json_decref(a->id);
			free(a);
		}
}

/* --- state ------------------------------------------------------------------
 */

enum member_state member_state(const struct member *m)
{
	uint64_t now = clock_ms();

	if (m->up && m->report_ms && now - m->report_ms < FRESH_MS)
		return MEMBER_LIVE;
	return now - m->seen_ms < m->c->conf.lost_ms ? MEMBER_AWAY
						     : MEMBER_LOST;
}

const char *member_state_word(enum member_state s)
{
	return s == MEMBER_LIVE ? "live" : s == MEMBER_AWAY ? "away" : "lost";
}

struct member *member_node(const struct control *c, const struct member *after)
{
	struct member *m = after ? after->next : c->members;

	while (m && (m->kind != TLS_NODE || m->left))
		m = m->next;
	return m;
}

struct member *member_by_code(struct control *c, const char *id)
{
	struct member *m = NULL, *found = NULL;

	while ((m = member_node(c, m))) {
		if (!*m->code || strncmp(m->code, id, CODE_LEN))
			continue;
		/* A machine may have come back under another name. */
		if (!found || m->seen_ms > found->seen_ms)
			found = m;
	}
	return found;
}

static struct member *find_member(struct control *c, enum tls_kind kind,
				  const char *name)
{
	struct member *m = c->members;

	while (m && (m->kind != kind || strcmp(m->name, name)))
		m = m->next;
	return m;
}

struct member *member_by_name(struct control *c, const char *name)
{
	struct member *m = find_member(c, TLS_NODE, name);

	return m && !m->left ? m : NULL;
}

bool nodes_unsure(struct control *c, bool *ret_lost)
{
	struct member *m = NULL;
	bool unsure = false;

	*ret_lost = false;
	while ((m = member_node(c, m))) {
		if (*m->code)
			continue;
		unsure |= member_state(m) == MEMBER_AWAY;
		*ret_lost |= member_state(m) == MEMBER_LOST;
	}
	return unsure;
}

/* --- reports ----------------------------------------------------------------
 */

static void take_report(struct member *m, json_t *rec)
{
	const char *code = json_str(rec, "node");

	if (!json_is_true(json_object_get(rec, "ok")) ||
	    strlen(code) != CODE_LEN ||
	    strspn(code, "abcdefghijklmnopqrstuvwxyz234567") != CODE_LEN)
		return;
	if (strcmp(code, m->code)) {
		const struct member *other = member_by_code(m->c, code);

		if (other && other != m && member_state(other) == MEMBER_LIVE)
			log_error("nodes %s and %s both have the code %s",
				  m->name, other->name, code);
		placer_forget(m);
		memcpy(m->code, code, CODE_LEN + 1);
	}
	m->report_ms = clock_ms();
	m->report_at_ms = m->asked_ms;
	json_decref(m->report);
	json_object_del(rec, "id");
	m->report = json_incref(rec);
	placer_report(m);
}

static struct member *member_new(struct control *c, enum tls_kind kind,
				 const char *name)
{
	struct member *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->c = c;
	m->kind = kind;
	m->seen_ms = clock_ms();
	snprintf(m->name, sizeof(m->name), "%s", name);
	m->next = c->members;
	c->members = m;
	return m;
}

static void set_address(struct member *m, const char *address)
{
	if (!strcmp(m->address, address))
		return;
	snprintf(m->address, sizeof(m->address), "%s", address);
	stop_lookup(m);
	if (m->conn)
		conn_cut(m->conn, NULL);
}

/* A node that a peer's serve.json says.  Where ours does, that holds. */
static void take_node(struct control *c, const json_t *o)
{
	const char *name = json_str(o, "name"), *code = json_str(o, "code");
	const char *address = json_str(o, "address");
	struct member *m = find_member(c, TLS_NODE, name);

	if (!tls_name_ok(name) || strlen(address) >= SERVECONF_ADDR_MAX ||
	    (*code && strlen(code) != CODE_LEN))
		return;
	if (!m)
		m = member_new(c, TLS_NODE, name);
	if (!m)
		return;
	m->told_ms = clock_ms();
	m->left = false;
	if (!m->said)
		set_address(m, address);
	if (!*m->code)
		memcpy(m->code, code, strlen(code) + 1);
}

static void on_info_event(void *arg, struct query *a, json_t *rec)
{
	struct member *m = arg;

	(void)a;
	if (m->kind == TLS_CONTROL && !strcmp(json_str(rec, "event"), "node"))
		take_node(m->c, rec);
}

static void on_info(void *arg, struct query *a, json_t *rec)
{
	struct member *m = arg;

	(void)a;
	m->reporting = NULL;
	m->seen_ms = clock_ms();
	if (m->kind == TLS_NODE)
		take_report(m, rec);
	else if (json_is_true(json_object_get(rec, "ok")))
		m->report_at_ms = m->asked_ms;
}

static void on_info_lost(void *arg, struct query *a)
{
	struct member *m = arg;

	(void)a;
	m->reporting = NULL;
}

static void ask_info(struct member *m)
{
	static const struct query_ops ops = {on_info_event, on_info,
					     on_info_lost};
	bool node = m->kind == TLS_NODE;
	char uri[TLS_URI_MAX];
	json_t *req;

	tls_ident_uri(tls_own(m->c->tls), uri);
	req = json_pack("{s:s}", "program", node ? "report" : "nodes");
	if (req && node) {
		json_object_set_new(req, "within", json_string("root"));
		json_object_set_new(req, "caller", json_string(uri));
	}
	m->asked_ms = clock_ms();
	if (req)
		(void)!query_new(m, req, &ops, m, &m->reporting, NULL);
	json_decref(req);
}

/* --- connections ------------------------------------------------------------
 */

static void on_up(void *arg, struct conn *c)
{
	struct member *m = arg;

	(void)c;
	m->up = true;
	m->backoff_ms = 0;
	m->seen_ms = clock_ms();
	conn_set_busy(m->conn, 1);
	ask_info(m);
}

static void on_line(void *arg, struct conn *c, json_t *obj)
{
	struct member *m = arg;
	struct query *a = find_ask(m, json_object_get(obj, "id"));
	const struct query_ops *ops;
	void *to;

	(void)c;
	if (!a)
		return;
	ops = a->ops;
	to = a->arg;
	if (!json_is_boolean(json_object_get(obj, "ok"))) {
		ops->event(to, a, obj);
		return;
	}
	/* Out of the list first: what it does may ask anew. */
	unlink_ask(a);
	ops->end(to, a, obj);
	json_decref(a->id);
	free(a);
}

static void again_later(struct member *m)
{
	m->backoff_ms = m->backoff_ms ? m->backoff_ms * 2 : BACKOFF_MS;
	if (m->backoff_ms > BACKOFF_MAX_MS)
		m->backoff_ms = BACKOFF_MAX_MS;
	loop_timer_set(m->c->loop, &m->again, clock_ms() + m->backoff_ms);
}

static void on_gone(void *arg, struct conn *c, const struct err *why)
{
	struct member *m = arg;

	(void)c;
	if (m->up || !m->backoff_ms)
		log_info("%s %s is away: %s", tls_kind_name(m->kind), m->name,
			 why->r ? why->msg : "it ended the connection");
	m->conn = NULL;
	m->up = false;
	lose_asks(m);
	if (!m->left)
		again_later(m);
}

/* A server that says nothing more answers nothing more. */
static void on_silence(void *arg, struct conn *c)
{
	(void)arg;
	conn_cut(c, NULL);
}

static const struct conn_ops ops = {.up = on_up,
				    .line = on_line,
				    .end = on_silence,
				    .gone = on_gone};

static void connect_at(struct member *m, const struct lookup_addr *at)
{
	struct tls_ident want = {.kind = m->kind};
	const struct conn_conf conf = {.peer = &want, .ops = &ops, .arg = m};
	struct err e = {0};
	int fd;

	snprintf(want.name, sizeof(want.name), "%s", m->name);
	fd = socket(at->addr.ss_family,
		    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 ||
	    (connect(fd, (const struct sockaddr *)&at->addr, at->len) < 0 &&
	     errno != EINPROGRESS)) {
		if (fd >= 0)
			fd_close(fd);
		again_later(m);
		return;
	}
	if (conn_open(&m->c->env, &conf, &fd, &m->conn, &e) < 0) {
		log_error("%s: %s", m->name, e.msg);
		again_later(m);
	}
}

static void on_found(void *arg, const struct lookup_addr *found,
		     const struct err *why)
{
	struct member *m = arg;

	m->lookup = NULL;
	m->c->lookups--;
	if (found) {
		connect_at(m, found);
		return;
	}
	if (!m->backoff_ms)
		log_error("%s %s: %s", tls_kind_name(m->kind), m->name,
			  why->msg);
	again_later(m);
}

/* A name is looked up each time: what it stands for may have moved. */
static void connect_to(struct member *m)
{
	struct lookup_addr at;
	struct err e = {0};

	if (lookup_numeric(m->address, &at) == 0) {
		connect_at(m, &at);
		return;
	}
	if (m->c->lookups < LOOKUPS_MAX &&
	    lookup_new(m->c->loop, m->address, on_found, m, &m->lookup, &e) ==
		    0)
		m->c->lookups++;
	else
		again_later(m);
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	struct member *m = t->arg;

	(void)l;
	if (!m->conn && !m->lookup && !m->left)
		connect_to(m);
}

/* Its reporter may be slow, and what others do there goes on: only who answers
 * no ping either is cut off. */
static void is_late(struct member *m, uint64_t now)
{
	auto_json json_t *line = json_pack("{s:s}", "program", "ping");
	struct err e = {0};

	if (now - m->asked_ms > SILENT_MS && now - m->seen_ms > SILENT_MS) {
		err_set(&e, -ETIMEDOUT, "timeout", "it does not answer");
		conn_cut(m->conn, &e);
	} else if (line) {
		(void)conn_put(m->conn, line, NULL);
	}
}

static void check(struct member *m, uint64_t now)
{
	const uint64_t every = m->kind == TLS_NODE ? REPORT_MS : PEER_MS;

	if (!m->conn && !m->lookup && !m->again.at_ms) {
		m->again = (struct loop_timer){.fn = on_again, .arg = m};
		connect_to(m);
	}
	if (!m->up)
		return;
	if (m->seen_ms < conn_heard_ms(m->conn))
		m->seen_ms = conn_heard_ms(m->conn);
	if (m->reporting && now - m->asked_ms > LATE_MS)
		is_late(m, now);
	else if (!m->reporting && now - m->asked_ms >= every)
		ask_info(m);
}

/* A peer that was not asked since it said it, or has not answered that, says it
 * still. */
static bool is_told(const struct member *m)
{
	const struct member *p = m->c->members;

	if (!m->told_ms)
		return false;
	while (p && (p->kind != TLS_CONTROL || p->left ||
		     p->report_at_ms > m->told_ms))
		p = p->next;
	return p != NULL;
}

static void leave(struct member *m)
{
	log_info("%s %s is not in the configuration any more",
		 tls_kind_name(m->kind), m->name);
	m->left = true;
	stop_lookup(m);
	loop_timer_set(m->c->loop, &m->again, 0);
	placer_forget(m);
	if (m->conn)
		conn_cut(m->conn, NULL);
}

static void free_member(struct member *m)
{
	loop_timer_set(m->c->loop, &m->again, 0);
	json_decref(m->report);
	free(m);
}

/* Those that nobody says; they are gone when nothing is asked of them. */
static void members_leave(struct control *c)
{
	for (struct member *m = c->members; m; m = m->next)
		if (!m->left && !m->said && !is_told(m))
			leave(m);
	for (struct member **p = &c->members; *p;) {
		struct member *m = *p;

		if (!m->left || m->conn || m->nasks > 0) {
			p = &m->next;
			continue;
		}
		*p = m->next;
		free_member(m);
	}
}

void members_tick(struct control *c)
{
	uint64_t now = clock_ms();

	members_leave(c);
	for (struct member *m = c->members; m; m = m->next)
		if (!m->left)
			check(m, now);
}

static int add(struct control *c, enum tls_kind kind,
	       const struct serveconf_peer *p, struct err *e)
{
	struct member *m = find_member(c, kind, p->name);

	if (!m)
		m = member_new(c, kind, p->name);
	if (!m)
		return err_sys(e, ENOMEM, "nodes");
	m->said = true;
	m->left = false;
	set_address(m, p->address);
	return 0;
}

int members_load(struct control *c, struct err *e)
{
	const struct serveconf *conf = &c->conf;
	int r = 0;

	for (struct member *m = c->members; m; m = m->next)
		m->said = false;
	for (size_t i = 0; r == 0 && i < conf->nodes.n; i++)
		r = add(c, TLS_NODE, &conf->nodes.list[i], e);
	for (size_t i = 0; r == 0 && i < conf->peers.n; i++)
		r = add(c, TLS_CONTROL, &conf->peers.list[i], e);
	if (r == 0)
		members_leave(c);
	return r;
}
