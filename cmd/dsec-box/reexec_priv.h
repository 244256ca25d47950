/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_REEXEC_PRIV_H
#define DSEC_BOX_REEXEC_PRIV_H

/* Of what one program writes down and the next one reads. */
#define REEXEC_VERSION 1

#endif
