/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_SERVE_H
#define DSEC_NET_SERVE_H

#include <stdbool.h>

/*
 * serve(background): `dsec-net --serve`.  In the foreground until SIGTERM; with
 * ${background} a child serves, and this returns when it can be connected to.
 * Returns the exit status; failures are printed.
 *
 * serve_upgrade(): `dsec-net --serve --upgrade`: let this program take over
 * from the one that serves.  serve_adopt(fd): what that one execs it for.
 */
int serve(bool background);
int serve_upgrade(void);
int serve_adopt(int fd);

#endif
