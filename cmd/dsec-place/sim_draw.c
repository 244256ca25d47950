/* SPDX-License-Identifier: Apache-2.0 */
/* Two panels: each node's load, and the fullest node's over time. */
#include <fcntl.h>
#include <math.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "sim.h"

#define PANEL_W 380.0
#define PANEL_H 260.0
#define LEFT	60.0
#define TOP	56.0
#define GAP	90.0
#define POINTS	160 /* of a line */

static const char *const colours[SIM_POLICIES] = {
	[SIM_OVERLAY] = "#0b6e4f", [SIM_BLIND] = "#c8553d",
	[SIM_ONE] = "#7a5195",	   [SIM_RANDOM] = "#8d99ae",
	[SIM_LEAST] = "#f4a259",
};
static const char *const legends[SIM_POLICIES] = {
	[SIM_OVERLAY] = "k choices, overlay",
	[SIM_BLIND] = "k choices, reports alone",
	[SIM_ONE] = "one choice",
	[SIM_RANDOM] = "random",
	[SIM_LEAST] = "least of all, known exactly",
};

struct canvas {
	struct buf b;
	bool failed;
	double x, y;   /* of the panel */
	double lo, hi; /* of its axis upwards */
};

#define draw(c, ...) ((c)->failed |= buf_addf(&(c)->b, __VA_ARGS__) < 0)

static double up(const struct canvas *c, double v)
{
	v = fmin(fmax(v, c->lo), c->hi);
	return c->y + PANEL_H * (1 - (v - c->lo) / (c->hi - c->lo));
}

static void axis(struct canvas *c, const char *title, const char *left,
		 const char *right)
{
	double step = (c->hi - c->lo) / 4;

	draw(c,
	     "<rect x='%.0f' y='%.0f' width='%.0f' height='%.0f' fill='none' "
	     "stroke='#999'/>\n"
	     "<text x='%.0f' y='%.0f' font-weight='bold'>%s</text>\n",
	     c->x, c->y, PANEL_W, PANEL_H, c->x, c->y - 12, title);
	for (unsigned i = 0; i <= 4; i++) {
		double v = c->lo + step * i;

		draw(c,
		     "<path d='M%.0f %.1fh%.0f' stroke='#ddd'/>"
		     "<text x='%.0f' y='%.1f' text-anchor='end'>%.4g</text>\n",
		     c->x, up(c, v), PANEL_W, c->x - 6, up(c, v) + 4, v);
	}
	draw(c,
	     "<text x='%.0f' y='%.0f'>%s</text>"
	     "<text x='%.0f' y='%.0f' text-anchor='end'>%s</text>\n",
	     c->x, c->y + PANEL_H + 16, left, c->x + PANEL_W,
	     c->y + PANEL_H + 16, right);
}

static void line(struct canvas *c, const double *v, size_t n,
		 enum sim_policy policy)
{
	size_t points = n < POINTS ? n : POINTS;

	if (points < 2)
		return;
	draw(c, "<path fill='none' stroke='%s' stroke-width='1.6' d='",
	     colours[policy]);
	for (size_t i = 0; i < points; i++)
		draw(c, "%s%.1f %.1f", i ? "L" : "M",
		     c->x + PANEL_W * (double)i / (double)(points - 1),
		     up(c, v[i * (n - 1) / (points - 1)]));
	draw(c, "'/>\n");
}

/* Far enough for what matters, never so far that 1 and 1.1 are one. */
static double top_of(const struct sim_result *rs, size_t n, bool series)
{
	double most = 1.05;

	for (size_t i = 0; i < n; i++) {
		if (!series && rs[i].nloads)
			most = fmax(most, rs[i].loads[rs[i].nloads - 1]);
		for (size_t k = SIM_POINTS / 10; series && k < rs[i].nseries;
		     k++)
			most = fmax(most, rs[i].series[k]);
	}
	return fmin(ceil(most * 20) / 20, 4);
}

static void panels(struct canvas *c, const struct sim_result *rs, size_t n,
		   const struct sim_trace *t)
{
	char end[32];

	snprintf(end, sizeof(end), "%.0f s", t->end_ms / 1000.0);
	c->x = LEFT;
	c->y = TOP;
	c->hi = top_of(rs, n, false);
	c->lo = fmax(2 - c->hi, 0);
	axis(c, "Load of each node, by the mean", "emptiest", "fullest");
	for (size_t i = 0; i < n; i++)
		line(c, rs[i].loads, rs[i].nloads, rs[i].policy);
	c->x = LEFT + PANEL_W + GAP;
	c->lo = 1;
	c->hi = top_of(rs, n, true);
	axis(c, "Fullest node over time, by the mean", "0", end);
	for (size_t i = 0; i < n; i++)
		line(c, rs[i].series, rs[i].nseries, rs[i].policy);
}

/* What theory tells is about the end, not about a burst before it. */
static void legend(struct canvas *c, const struct sim_result *rs, size_t n)
{
	double y = TOP + PANEL_H + 44;
	char burst[32];

	for (size_t i = 0; i < n; i++, y += 18) {
		burst[0] = '\0';
		if (rs[i].burst_max_mean > 0)
			snprintf(burst, sizeof(burst), " %.3f in the burst,",
				 rs[i].burst_max_mean);
		draw(c,
		     "<path d='M%.0f %.0fh24' stroke='%s' stroke-width='3'/>"
		     "<text x='%.0f' y='%.0f'>%s: max/mean%s %.3f %s(theory "
		     "%.3f), refused %llu, retried %llu</text>\n",
		     LEFT, y - 4, colours[rs[i].policy], LEFT + 32, y,
		     legends[rs[i].policy], burst, rs[i].max_mean,
		     *burst ? "later " : "", rs[i].theory,
		     (unsigned long long)rs[i].refused,
		     (unsigned long long)rs[i].retried);
	}
}

int sim_draw(const struct sim_conf *c, const struct sim_trace *t,
	     const struct sim_result *rs, size_t n, struct err *e)
{
	double width = LEFT + 2 * PANEL_W + GAP + 30;
	double height = TOP + PANEL_H + 44 + 18 * (double)n + 8;
	struct canvas v = {.failed = false};
	auto_close int fd = -1;
	int r = 0;

	draw(&v,
	     "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' "
	     "font-family='sans-serif' font-size='12'>\n"
	     "<rect width='100%%' height='100%%' fill='#fff'/>\n"
	     "<text x='%.0f' y='20' font-size='14'>%u nodes, %zu creations "
	     "(burst %llu), %u placers, k = %u, reports every %u ms</text>\n",
	     width, height, LEFT, c->nodes, t->n, (unsigned long long)c->burst,
	     c->placers, c->k, c->report_ms);
	panels(&v, rs, n, t);
	legend(&v, rs, n);
	draw(&v, "</svg>\n");
	if (v.failed)
		r = err_sys(e, ENOMEM, "drawing");
	if (r == 0) {
		fd = open(c->svg, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
			  0644);
		r = fd < 0 ? err_sys(e, errno, "make '%s'", c->svg)
			   : fd_write_all(fd, v.b.data, v.b.len, e);
	}
	buf_done(&v.b);
	return r;
}
