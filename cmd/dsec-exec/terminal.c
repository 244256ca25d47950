/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "terminal.h"

int terminal_raw(struct terminal *t, struct err *e)
{
	struct termios raw;

	if (!t->wanted || !t->interactive)
		return 0;
	if (tcgetattr(STDIN_FILENO, &t->was) < 0)
		return 0; /* not a terminal */
	raw = t->was;
	cfmakeraw(&raw);
	if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0)
		return err_sys(e, errno, "set up the terminal");
	t->saved = true;
	return 0;
}

void terminal_restore(struct terminal *t)
{
	if (t->saved)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &t->was);
	t->saved = false;
}

static bool size(struct winsize *ws)
{
	return (ioctl(STDIN_FILENO, TIOCGWINSZ, ws) == 0 ||
		ioctl(STDOUT_FILENO, TIOCGWINSZ, ws) == 0) &&
	       ws->ws_row > 0 && ws->ws_col > 0;
}

void terminal_describe(const struct terminal *t, json_t *req)
{
	struct winsize ws;

	if (!t->wanted)
		return;
	if (!size(&ws))
		ws = (struct winsize){.ws_row = 24, .ws_col = 80};
	json_object_set_new(req, "tty", json_true());
	if (!json_object_get(req, "rows"))
		json_object_set_new(req, "rows", json_integer(ws.ws_row));
	if (!json_object_get(req, "cols"))
		json_object_set_new(req, "cols", json_integer(ws.ws_col));
}

void terminal_copy_size(const struct terminal *t, int master)
{
	struct winsize ws;

	if (t->is_command_tty && size(&ws))
		ioctl(master, TIOCSWINSZ, &ws);
}
