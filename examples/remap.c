/* A program that moves its own code, constants and data onto huge pages, first of all.
 *
 * cc remap.c $(pkg-config --cflags --libs megapage) -o remap
 * ./remap [LIBRARY[:LIBRARY]...]     libraries that are moved as well, such as libpython3.11.so.1.0
 */

#include <megapage.h>

#include <stdio.h>

int main(int argc, char **argv) {
    megapage_remapped remapped;
    /* Before any thread is started: data is moved only where there is one. */
    if (megapage_remap_self(MEGAPAGE_REMAP_THP, argc > 1 ? argv[1] : NULL, 0, &remapped) < 0) {
        fprintf(stderr, "remap: %s\n", megapage_message());
        return 2;
    }
    printf("%llu KiB of %llu KiB are on huge pages\n", (unsigned long long)remapped.huge >> 10,
           (unsigned long long)remapped.possible >> 10);
    /* The program goes on as if nothing had happened. */
    return 0;
}
