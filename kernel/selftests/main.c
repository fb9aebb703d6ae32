// SPDX-License-Identifier: GPL-2.0-only
/*
 * main.c - runs the tests, each in a process of its own, and prints TAP
 *
 *   exmap-test [group...]   groups: basic setup alloc read memory uring count
 *                           blank stale entry mm nested stress; all by
 *                           default
 *
 * EXMAP_SECONDS sets how long each stress test lasts (5).
 */
#include <stdarg.h>

#include "test.h"

static bool failed;

void note_failure(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printf("# %s:%d: %s\n", file, line, text);
	fflush(stdout);
	failed = true;
}

bool test_failed(void)
{
	return failed;
}

/* Exit status of a test; 255 when a signal ended it. */
static int run(const struct test *test)
{
	const char *seconds = getenv("EXMAP_SECONDS");
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		return 255;
	if (!pid) {
		alarm(240 + (seconds ? atoi(seconds) : 0));
		test->run();
		fflush(stdout);
		_exit(failed ? 1 : 0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return 255;
	if (WIFSIGNALED(status))
		printf("# ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static const struct group {
	const char *name;
	const struct test *tests;
} groups[] = {
	{ "basic", basic_tests },
	{ "setup", setup_tests }, { "alloc", alloc_tests },
	{ "read", read_tests }, { "memory", memory_tests },
	{ "uring", uring_tests }, { "count", count_tests },
	{ "blank", blank_tests }, { "stale", stale_tests },
	{ "entry", entry_tests }, { "mm", mm_tests },
	{ "nested", nested_tests },
	{ "stress", stress_tests },
	{ NULL, NULL },
};

static bool chosen(const char *name, int argc, char **argv)
{
	if (argc < 2)
		return true;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], name))
			return true;
	}
	return false;
}

int main(int argc, char **argv)
{
	int number = 0, bad = 0, total = 0;

	for (const struct group *g = groups; g->name; g++) {
		for (const struct test *t = g->tests; t->sentence; t++)
			total += chosen(g->name, argc, argv);
	}
	printf("TAP version 13\n1..%d\n", total);
	for (const struct group *g = groups; g->name; g++) {
		if (!chosen(g->name, argc, argv))
			continue;
		for (const struct test *t = g->tests; t->sentence; t++) {
			number++;
			if (t->needs && access(t->needs, R_OK)) {
				printf("ok %d - %s: %s # SKIP no %s\n", number,
				       g->name, t->sentence, t->needs);
				continue;
			}
			/* If the machine is ended, this says during what. */
			printf("# begins %d - %s: %s\n", number, g->name,
			       t->sentence);
			int status = run(t);

			printf("%s %d - %s: %s\n", status ? "not ok" : "ok",
			       number, g->name, t->sentence);
			bad += status != 0;
		}
	}
	printf("# %d of %d failed\n", bad, total);
	return total == 0 || bad ? 1 : 0;
}
