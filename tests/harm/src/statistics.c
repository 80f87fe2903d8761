// Asks malloc for its statistics.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    for (int at = 0; at < 100; at++) memset(malloc(500000), 1, 500000);
    struct mallinfo2 info = mallinfo2();
    printf("in use: %s\n", info.uordblks + info.hblkhd > 40000000 ? "counted" : "not counted");
    printf("usable: %s\n", malloc_usable_size(malloc(24)) >= 24 ? "enough" : "too little");
    printf("mallopt: %d\n", mallopt(M_MMAP_THRESHOLD, 1 << 20));
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    int error = malloc_info(0, stream);
    fclose(stream);
    printf("malloc_info: %d, %s\n", error, strstr(text, "<malloc") ? "a document" : "no document");
    return 0;
}
