// A plugin with a copy of a library that the host has in another version.
#include <stdlib.h>

int api_version(void) { return 2; }

int plugin_run(void) {
    free(malloc(100));
    return api_version();
}
