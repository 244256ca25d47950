/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_RECORD_H
#define DSEC_BOX_RECORD_H

#include "exec.h"

/* exec_record() is declared in exec.h: record.c makes it. */

/* record_infra(outcome): what PROTOCOL.md says of it. */
bool record_infra(const char *outcome);

#endif
