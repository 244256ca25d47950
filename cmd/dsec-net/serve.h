/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_SERVE_H
#define DSEC_NET_SERVE_H

#include <stdbool.h>

/*
 * serve(background): `dsec-net --serve`.  In the foreground until SIGTERM; with
 * ${background} a child serves, and this returns when it can be connected to.
 * Returns the exit status; failures are printed.
 *
 * serve_adopt(fd): what a helper that is replaced execs the new program for:
 * `dsec-net --serve --adopt FD`.
 */
int serve(bool background);
int serve_adopt(int fd);

#endif
