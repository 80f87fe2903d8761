// Loads a plugin whose own symbols come first: usage: host PLUGIN.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int api_version(void) { return 1; }

int main(int argc, char **argv) {
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!plugin) {
        puts(dlerror());
        return 1;
    }
    int (*run)(void) = (int (*)(void))dlsym(plugin, "plugin_run");
    printf("host %d, plugin %d\n", api_version(), run());
    return 0;
}
