/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "wire/exit.h"

/* clang-format off */
const struct exit_code exit_codes[] = {
	{"usage", EXIT_USAGE_ERROR, "the command line is wrong"},
	{"bad_record", EXIT_BAD_RECORD, "a line is not a JSON object as PROTOCOL.md wants it"},
	{"too_large", EXIT_BAD_RECORD, "a line, file or field is over its limit"},
	{"unknown_field", EXIT_BAD_RECORD, "a request has a field this program does not know"},
	{"missing_field", EXIT_BAD_RECORD, "a field that must be there is not"},
	{"bad_value", EXIT_BAD_RECORD, "a field has a wrong type, range or form"},
	{"bad_path", EXIT_BAD_RECORD, "a path is malformed, loops or leaves its root"},
	{"unsupported", EXIT_PEER_AWAY, "this node or release cannot do it; the message names what is missing"},
	{"sandbox_unknown", EXIT_NO, "no such sandbox on this node"},
	{"exec_unknown", EXIT_NO, "no such command in that sandbox"},
	{"session_unknown", EXIT_NO, "no such session in that sandbox"},
	{"image_unknown", EXIT_NO, "no such image in the store"},
	{"image_damaged", EXIT_NO, "an image or its store is not what its digests say"},
	{"image_in_use", EXIT_NO, "sandboxes, snapshots, layers or leases use the image; the message names them"},
	{"bad_archive", EXIT_BAD_RECORD, "an archive cannot be imported; the message has entry and offset"},
	{"user_unknown", EXIT_NO, "the sandbox has no such user or group"},
	{"cwd", EXIT_NO, "the working directory is missing, no directory or not accessible"},
	{"command_not_found", EXIT_NO, "the sandbox has no such program"},
	{"command_not_executable", EXIT_NO, "the program cannot be executed"},
	{"args_too_long", EXIT_NO, "arguments or environment are over the kernel's limit"},
	{"name_taken", EXIT_NO, "a live sandbox has that name"},
	{"key_conflict", EXIT_NO, "the idempotency key was used for a different request"},
	{"mount_denied", EXIT_NOT_PERMITTED, "the operator has not allowed that host directory"},
	{"memory_too_small", EXIT_NO, "the memory limit cannot hold a sandbox"},
	{"memory", EXIT_TRY_AGAIN, "admission: not enough memory left to claim"},
	{"cpu", EXIT_TRY_AGAIN, "admission: not enough CPU left to claim"},
	{"pressure", EXIT_TRY_AGAIN, "admission: the node is short of memory now"},
	{"disk", EXIT_TRY_AGAIN, "admission: not enough disk left to claim"},
	{"count", EXIT_TRY_AGAIN, "admission: no sandbox slot, process or uid range left"},
	{"isolation", EXIT_TRY_AGAIN, "admission: the node is kept for another user"},
	{"draining", EXIT_TRY_AGAIN, "admission: the node takes no new sandboxes"},
	{"busy", EXIT_TRY_AGAIN, "another operation holds it, or too much is under way; try again"},
	{"stopped", EXIT_NO, "the sandbox is stopped or stopping"},
	{"one_shot", EXIT_NO, "a one-shot sandbox has no supervisor to ask"},
	{"supervisor_lost", EXIT_PEER_AWAY, "the sandbox's supervisor died, and the sandbox with it"},
	{"helper_lost", EXIT_PEER_AWAY, "a helper of the node does not serve, or ended before it answered; what needs it next starts it"},
	{"node_away", EXIT_TRY_AGAIN, "the sandbox's node cannot be reached now; try again"},
	{"node_lost", EXIT_PEER_AWAY, "the node went away, and the sandbox with it"},
	{"deadline", EXIT_TRY_AGAIN, "deadline_ms passed before the request was done"},
	{"cancelled", EXIT_NO, "the request was cancelled"},
	{"timeout", EXIT_SYSTEM, "a step took longer than it may"},
	{"exists", EXIT_NO, "the name is there already"},
	{"not_found", EXIT_NO, "no such file"},
	{"is_directory", EXIT_NO, "a directory where a file is wanted"},
	{"not_directory", EXIT_NO, "a file where a directory is wanted"},
	{"not_empty", EXIT_NO, "the directory is not empty"},
	{"not_regular", EXIT_NO, "a FIFO, socket or device where a file is wanted"},
	{"read_only", EXIT_NO, "the file system is read-only"},
	{"permission", EXIT_NOT_PERMITTED, "not permitted"},
	{"quota", EXIT_NO, "a disk limit is reached"},
	{"refused_entries", EXIT_NO, "an archive held entries that were not extracted; they are listed"},
	{"not_checkpointable", EXIT_NO, "a process, or the sandbox's shape, cannot be checkpointed; the message names both"},
	{"checkpoint_damaged", EXIT_NO, "a checkpoint or snapshot is not what its manifest says"},
	{"snapshot_unknown", EXIT_NO, "no such snapshot on this node"},
	{"incompatible", EXIT_NO, "a checkpoint of another kind of node; the message names the mismatch"},
	{"engine", EXIT_SYSTEM, "the checkpoint engine failed; the message has its last words"},
	{"no_space", EXIT_SYSTEM, "a file system is full"},
	{"no_fds", EXIT_SYSTEM, "out of file descriptors"},
	{"no_memory", EXIT_SYSTEM, "out of memory"},
	{"io", EXIT_SYSTEM, "an input/output error"},
	{"system", EXIT_SYSTEM, "a system call failed"},
	{"not_root", EXIT_NOT_PERMITTED, "the program must run as root"},
	{"configuration", EXIT_CONFIGURATION, "the node or its configuration is unfit; dsec-doctor tells"},
	{"stdout_lost", EXIT_STDOUT_LOST, "standard output was closed or is full"},
	{"audit_damaged", EXIT_NO, "an audit log is not what its hashes say"},
	{"internal", EXIT_BUG, "a mistake of ours"},
	{"oom", EXIT_NO, "a file operation needed more than the sandbox's memory limit leaves"},
};
/* clang-format on */
const size_t exit_codes_len = sizeof(exit_codes) / sizeof(exit_codes[0]);

const struct exit_outcome exit_outcomes[] = {
	{"exited", false, "the command ended by itself; see exit_code"},
	{"signalled", false, "a signal ended the command; see signal"},
	{"timeout", false, "timeout_ms passed; the whole group was killed"},
	{"oom", false, "the memory limit was reached; see oom"},
	{"killed", false, "ended by request: signal, stop, cancel"},
	{"policy", false, "ended because a policy forbids it"},
	{"quota", false, "ended because a limit on disk or use was reached"},
	{"ttl_idle", false, "ttl_running_stop passed without activity"},
	{"ttl_absolute", false, "ttl_absolute passed"},
	{"ttl_paused", false, "ttl_paused passed while paused"},
	{"died", true, "pid 1 of the sandbox ended though nobody asked"},
	{"supervisor-lost", true, "the supervisor died"},
	{"node-lost", true, "the node went away"},
};
const size_t exit_outcomes_len = sizeof(exit_outcomes) /
				 sizeof(exit_outcomes[0]);

enum exit_status exit_of(const struct err *e)
{
	for (size_t i = 0; e->code && i < exit_codes_len; i++)
		if (!strcmp(exit_codes[i].code, e->code))
			return exit_codes[i].status;
	return EXIT_BUG;
}

enum exit_status exit_join(enum exit_status was, enum exit_status one)
{
	if (was == EXIT_OK || was == one)
		return one;
	return one == EXIT_OK ? was : EXIT_NO;
}

int exit_helper(const struct err *e)
{
	for (size_t i = 0; e->code && i < exit_codes_len; i++)
		if (!strcmp(exit_codes[i].code, e->code))
			return HELPER_EXIT_BASE + (int)i;
	return EXIT_BUG;
}
