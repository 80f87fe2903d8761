/* On base pages of 16 KiB, as this program has sysconf answer, every entry point refuses by its errno. */
#include <dlfcn.h>
#include <errno.h>
#include <megapage.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_PAGESIZE)
		return 16384;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}

int main(int count, char **arguments)
{
	static char memory[4 << 20];
	megapage_pool pool = 0;
	megapage_segment segment = 0;
	struct megapage_options options;
	struct megapage_backing backing;
	int answers[] = {
		megapage_pool_open("app", MEGAPAGE_2M, &pool),
		megapage_pool_open_in(count > 1 ? arguments[1] : "/", "app", MEGAPAGE_2M, &pool),
		megapage_options_init(&options, 4 << 20),
		megapage_segment_in_memory("one", MEGAPAGE_2M, 0, 4 << 20, 4 << 20, &segment),
		megapage_advise(memory, sizeof(memory), 0, &backing),
	};

	for (size_t n = 0; n < sizeof(answers) / sizeof(answers[0]); n++) {
		if (answers[n] != -EOPNOTSUPP) {
			printf("%zu: %d %s\n", n, answers[n], megapage_message());
			return 1;
		}
	}
	if (pool || segment || strlen(megapage_version()) == 0)
		return 2;
	printf("%s\n", megapage_message());
	return 0;
}
