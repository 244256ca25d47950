/* SPDX-License-Identifier: Apache-2.0 */
/* Many timers of one loop: their order is that of their times, and of setting
 * where those are equal, whatever was set anew and taken out before. */
#include <stdint.h>
#include <stdlib.h>

#include "../tap.h"
#include "base/clock.h"
#include "base/loop.h"

#define MANY 20000

static struct many {
	struct loop_timer t[MANY];
	uint64_t at[MANY], turn[MANY], last_at, last_turn;
	unsigned left, wrong;
	uint32_t seed;
} m;

static uint32_t some(uint32_t below)
{
	m.seed = m.seed * 1664525 + 1013904223;
	return (m.seed >> 8) % below;
}

static void on_timer(struct loop *l, struct loop_timer *t)
{
	size_t i = (size_t)(t - m.t);

	if (!m.at[i] || m.at[i] < m.last_at ||
	    (m.at[i] == m.last_at && m.turn[i] < m.last_turn))
		m.wrong++;
	m.last_at = m.at[i];
	m.last_turn = m.turn[i];
	m.at[i] = 0;
	if (--m.left == 0)
		loop_stop(l, 7);
}

int main(void)
{
	uint64_t now = clock_ms(), turn = 0;
	struct loop *l = NULL;
	struct err e = {0};

	is_int(loop_new(&l, &e), 0, "a loop");
	for (size_t i = 0; i < MANY; i++)
		m.t[i] = (struct loop_timer){.fn = on_timer};
	for (unsigned n = 0; n < 5 * MANY; n++) {
		size_t i = some(MANY);

		m.at[i] = some(4) ? now + 1 + some(200) : 0;
		m.turn[i] = turn++;
		loop_timer_set(l, &m.t[i], m.at[i]);
	}
	for (size_t i = 0; i < MANY; i++)
		m.left += m.at[i] != 0;
	ok(m.left > MANY / 2, "%u are set", m.left);
	is_int(loop_run(l, &e), 7, "all of them come");
	is_int(m.wrong, 0, "in their order");
	ok(clock_ms() - now < 5000, "in time");
	loop_free(l);
	return tap_done();
}
