/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/input.h"

static const struct field fields[] = {
	{.key = "n", .type = FIELD_INT, .min = 0, .max = 1000},
};

/* What came, one letter each: the last digit of n, P passed on, ! bad. */
struct seen {
	struct loop *loop;
	struct input *in;
	char text[64];
	size_t n;
	bool hold; /* after every line, for a while */
	struct loop_timer later;
	int feed; /* -1, or a pipe that is written when held first */
};

static void on_later(struct loop *l, struct loop_timer *t)
{
	struct seen *s = t->arg;

	(void)l;
	if (s->feed >= 0) {
		ok(write(s->feed, "{\"n\":7}\n", 8) == 8, "more is written");
		fd_close(steal_fd(&s->feed));
	}
	input_hold(s->in, false);
}

static void on_line(void *arg, struct input_line *line)
{
	struct seen *s = arg;
	char c = '!';

	if (!line->bad && line->kind == RECORD_PASS)
		c = 'P';
	else if (!line->bad)
		c = (char)('0' + json_int(line->req, "n", 0) % 10);
	if (s->n < sizeof(s->text) - 1)
		s->text[s->n++] = c;
	json_decref(line->req);
	if (!s->hold)
		return;
	input_hold(s->in, true);
	loop_timer_set(s->loop, &s->later, clock_ms() + 5);
}

static void on_end(void *arg, const struct err *why)
{
	struct seen *s = arg;

	s->text[s->n++] = why ? 'E' : '.';
	loop_stop(s->loop, 0);
}

static const struct input_ops ops = {on_line, on_end};

static void expect(int fd, bool hold, int feed, const char *want,
		   const char *what)
{
	struct seen s = {.hold = hold, .feed = feed};
	struct input_from from = {.fd = fd,
				  .fields = fields,
				  .nfields = array_len(fields),
				  .ops = &ops,
				  .arg = &s};
	struct err e = {0};

	s.later = (struct loop_timer){.fn = on_later, .arg = &s};
	if (loop_new(&s.loop, &e) < 0 ||
	    input_new(s.loop, &from, &s.in, &e) < 0 || loop_run(s.loop, &e) < 0)
		ok(false, "%s: %s", what, e.msg);
	is_str(s.text, want, what);
	input_free(s.in);
	loop_free(s.loop);
}

static int filled_pipe(const char *text, int *ret_end)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0 ||
	    write(fds[1], text, strlen(text)) != (ssize_t)strlen(text))
		exit(1);
	if (ret_end)
		*ret_end = fds[1];
	else
		fd_close(fds[1]);
	return fds[0];
}

static int filled_file(const char *text)
{
	int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ||
	    lseek(fd, 0, SEEK_SET) != 0)
		exit(1);
	return fd;
}

static const struct {
	const char *text, *want, *what;
} cases[] = {
	{"", ".", "nothing"},
	{"\n \n", ".", "blank lines"},
	{"{\"n\":1}\n{\"n\":2}\n", "12.", "two lines"},
	{"{\"n\":3}", "3.", "a last line without its newline"},
	{"{\"n\":1}\n{\"x\":2}\n[]\n{\"n\":4}\n", "1!!4.", "bad ones between"},
	{"{\"ok\":false,\"a\":1}\n{\"n\":1}\n", "P1.", "one to pass on"},
};

static void check_long(void)
{
	auto_close int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	static char line[2 * JSON_LINE_MAX];

	memset(line, 'x', sizeof(line));
	if (fd < 0 || write(fd, line, sizeof(line)) != (ssize_t)sizeof(line) ||
	    write(fd, "\n{\"n\":5}\n", 9) != 9 || lseek(fd, 0, SEEK_SET) != 0)
		exit(1);
	expect(fd, false, -1, "!5.", "a line that is too long is skipped");
}

int main(void)
{
	int end = -1, fd;

	for (size_t i = 0; i < array_len(cases); i++)
		for (int hold = 0; hold < 2; hold++) {
			auto_close int p = filled_pipe(cases[i].text, NULL);
			auto_close int f = filled_file(cases[i].text);

			expect(p, hold, -1, cases[i].want, cases[i].what);
			expect(f, hold, -1, cases[i].want, cases[i].what);
		}
	check_long();
	fd = filled_pipe("{\"n\":6}\n", &end);
	expect(fd, true, end, "67.", "what comes while it is held");
	fd_close(fd);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	expect(fd, false, -1, ".", "/dev/null");
	fd_close(fd);
	fd = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	expect(fd, false, -1, "E", "what cannot be read");
	fd_close(fd);
	return tap_done();
}
