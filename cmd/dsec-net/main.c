/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/log.h"
#include "serve.h"
#include "wire/exit.h"

int main(int argc, char **argv)
{
	log_init("dsec-net");
	if (argc > 1 && !strcmp(argv[1], "--serve"))
		return serve(argc > 2 && !strcmp(argv[2], "--background"));
	log_error("only --serve is there yet");
	return EXIT_USAGE_ERROR;
}
