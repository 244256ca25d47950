/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "import.h"

#define REF_MAX	   320
#define ARGS_MAX   24
#define TELL_MS	   200
#define STDERR_MAX 4096 /* of the end of what skopeo says */

/* A run of skopeo. */
struct skopeo {
	const char *argv[ARGS_MAX];
	int argc;
	char source[REF_MAX + 16], target[64], tmp[64];
	char os[64], arch[64], variant[64];
	char said[STDERR_MAX];
	size_t nsaid;
};

static void arg(struct skopeo *k, const char *a, const char *value)
{
	if (value && !*value)
		return;
	k->argv[k->argc++] = a;
	if (value)
		k->argv[k->argc++] = value;
}

/* OS/ARCH[/VARIANT], as it was checked where it was used the first time. */
static void split_platform(struct skopeo *k, const char *platform)
{
	sscanf(platform, "%63[^/]/%63[^/]/%63s", k->os, k->arch, k->variant);
}

/*
 * Its files lie in a directory of the store's, named through a descriptor of
 * ours: a path could hold a ':', which has a meaning there.
 */
static int prepare(struct skopeo *k, const struct import_req *q,
		   const char *ref, struct err *e)
{
	const json_t *req = q->req;

	if (mkdirat(q->m.tmpfd, "skopeo", 0700) < 0)
		return err_sys(e, errno, "make a directory to unpack to");
	snprintf(k->tmp, sizeof(k->tmp), "TMPDIR=/proc/%d/fd/%d/skopeo",
		 (int)getpid(), q->m.tmpfd);
	snprintf(k->target, sizeof(k->target), "oci:/proc/%d/fd/%d/oci:image",
		 (int)getpid(), q->m.tmpfd);
	snprintf(k->source, sizeof(k->source), "docker://%s", ref);
	split_platform(k, json_str(req, "platform"));
	arg(k, "skopeo", NULL);
	arg(k, "--override-os", k->os);
	arg(k, "--override-arch", k->arch);
	arg(k, "--override-variant", k->variant);
	arg(k, "copy", NULL);
	arg(k, "--quiet", NULL);
	arg(k, "--authfile", json_str(req, "authfile"));
	if (json_flag(req, "insecure"))
		arg(k, "--src-tls-verify=false", NULL);
	arg(k, "--", NULL);
	arg(k, k->source, NULL);
	arg(k, k->target, NULL);
	return 0;
}

/* What it needs to find itself, its configuration and a way out. */
static char **environment(struct skopeo *k, char **env, size_t size)
{
	static const char *const names[] = {
		"PATH",
		"HOME",
		"XDG_RUNTIME_DIR",
		"HTTP_PROXY",
		"HTTPS_PROXY",
		"NO_PROXY",
		"http_proxy",
		"https_proxy",
		"no_proxy",
		"SSL_CERT_FILE",
		"SSL_CERT_DIR",
		"REGISTRY_AUTH_FILE",
		"CONTAINERS_REGISTRIES_CONF",
	};
	size_t n = 0;

	env[n++] = k->tmp;
	for (char **v = environ; *v && n + 1 < size; v++) {
		size_t len = strcspn(*v, "=");

		for (size_t i = 0; i < array_len(names); i++)
			if (strlen(names[i]) == len &&
			    !strncmp(*v, names[i], len) && n + 1 < size)
				env[n++] = *v;
	}
	env[n] = NULL;
	return env;
}

static void child(struct skopeo *k, int err_fd, pid_t parent)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char *env[32];

	/* It has no use when we are gone. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	sig_reset();
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 ||
	    dup2(err_fd, 2) < 0)
		_exit(127);
	execvpe(k->argv[0], (char **)(uintptr_t)k->argv,
		environment(k, env, array_len(env)));
	_exit(errno == ENOENT ? 126 : 127);
}

/* Keep the end of what it says. */
static void hear(struct skopeo *k, const char *text, size_t n)
{
	size_t room = sizeof(k->said) - 1;

	if (n > room) {
		text += n - room;
		n = room;
	}
	if (k->nsaid + n > room) {
		size_t drop = k->nsaid + n - room;

		memmove(k->said, k->said + drop, k->nsaid - drop);
		k->nsaid -= drop;
	}
	memcpy(k->said + k->nsaid, text, n);
	k->nsaid += n;
}

/* Until it closes its stderr, telling that we are at it. */
static int listen_to(struct skopeo *k, struct import_req *q, int fd,
		     struct err *e)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char text[1024];
	ssize_t n;
	int r;

	for (;;) {
		r = img_progress(q->c, 0, 0, "skopeo copies the image", e);
		if (r < 0)
			return r;
		r = poll(&p, 1, TELL_MS);
		if (r < 0 && errno != EINTR)
			return err_sys(e, errno, "poll");
		if (r <= 0)
			continue;
		n = read(fd, text, sizeof(text));
		if (n < 0 && errno != EINTR)
			return err_sys(e, errno, "read");
		if (n == 0)
			return 0;
		if (n > 0)
			hear(k, text, (size_t)n);
	}
}

/* "a \"b\"" at the beginning of ${s}, without what its quoting adds. */
static char *unquote(char *s)
{
	char *to = s, *from = s + 1;

	if (*s != '"')
		return s;
	for (; *from && *from != '"'; from++) {
		if (*from == '\\' && from[1])
			from++;
		*to++ = *from;
	}
	*to = '\0';
	return s;
}

/* Nothing that another reference or other credentials would help. */
static bool is_network(const char *line)
{
	static const char *const signs[] = {
		"dial tcp",
		"i/o timeout",
		"no such host",
		"connection refused",
		"connection reset by peer",
		"network is unreachable",
		"TLS handshake timeout",
		"Client.Timeout exceeded",
	};

	for (size_t i = 0; i < array_len(signs); i++)
		if (strstr(line, signs[i]))
			return true;
	return false;
}

/* Its last line, without what its logger puts around it. */
static const char *last_line(struct skopeo *k)
{
	char *end = k->said + k->nsaid, *msg;

	while (end > k->said && (end[-1] == '\n' || end[-1] == ' '))
		end--;
	*end = '\0';
	while (end > k->said && end[-1] != '\n')
		end--;
	msg = strstr(end, " msg=");
	for (char *p = end; *p; p++)
		if ((unsigned char)*p < ' ' || (unsigned char)*p > '~')
			*p = '?';
	return msg ? unquote(msg + 5) : end;
}

static int verdict(struct skopeo *k, int status, const char *ref, struct err *e)
{
	const char *line = last_line(k);

	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 126)
		return err_set(e, -ENOENT, "configuration",
			       "skopeo is not installed: it is what talks to "
			       "registries (package skopeo)");
	if (WIFSIGNALED(status))
		return err_set(e, -EIO, "io", "skopeo ended by signal %d",
			       WTERMSIG(status));
	err_set(e, -EIO, "io", "skopeo cannot copy %s: %.300s", ref,
		*line ? line : "it does not say why");
	if (e && is_network(line))
		e->infra = true;
	return -EIO;
}

static int run_skopeo(struct skopeo *k, struct import_req *q, const char *ref,
		      struct err *e)
{
	auto_close int in = -1;
	pid_t parent = getpid(), pid;
	int fds[2], status = 0, r;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	in = fds[0];
	pid = fork();
	if (pid == 0)
		child(k, fds[1], parent);
	fd_close(fds[1]);
	if (pid < 0)
		return err_sys(e, errno, "start skopeo");
	r = listen_to(k, q, in, e);
	if (r < 0)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return r < 0 ? r : verdict(k, status, ref, e);
}

static int import_copy(struct import_req *q, const char *ref, json_t *answer,
		       struct err *e)
{
	auto_close int fd = openat(q->m.tmpfd, "oci",
				   O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct oci_files *files = NULL;
	int r;

	if (fd < 0)
		return err_sys(e, errno, "what skopeo copied");
	r = oci_files_dir(fd, &files, e);
	if (r == 0)
		r = import_req_image(q, files, NULL, "registry", ref, answer,
				     e);
	oci_files_free(files);
	return r;
}

int op_pull(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	const char *source = json_str(req, "source");
	struct skopeo k = {.argc = 0};
	struct import_req q;
	char ref[REF_MAX];
	int r;

	if (!strncmp(source, "docker://", 9))
		source += 9;
	if (oci_ref_normal(source, ref, sizeof(ref)) < 0)
		return err_set(e, -EINVAL, "bad_value",
			       "'%.100s' is no reference of a registry: "
			       "[HOST[:PORT]/]NAME[:TAG]",
			       source);
	r = import_req_start(&q, c, req, e);
	if (r == 0)
		r = prepare(&k, &q, ref, e);
	if (r == 0)
		r = run_skopeo(&k, &q, ref, e);
	if (r == 0)
		r = import_copy(&q, ref, answer, e);
	import_req_done(&q);
	return r;
}
