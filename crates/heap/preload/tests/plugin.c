// A library with a function that its program has too, and with blocks that cross the border. See
// guest.c.
#include <stdlib.h>
#include <string.h>

int version(void) { return 2; }
int plugin_version(void) { return version(); }
void* plugin_malloc(size_t size) { return malloc(size); }
char* plugin_copy(const char* text) { return strdup(text); }
void plugin_free(void* block) { free(block); }
