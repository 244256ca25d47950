/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

/* What every program prints for --version. */
#define DSEC_VERSION "0.1.0"

#endif
