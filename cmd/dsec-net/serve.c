/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "serve.h"
#include "wire/exit.h"

int serve(bool background)
{
	(void)background;
	log_error("--serve is not there yet");
	return EXIT_PEER_AWAY;
}
