// Frees a block twice: usage: twice small|large.
#include <stdlib.h>

int main(int argc, char **argv) {
    size_t size = argv[1][0] == 's' ? 40 : 100000;
    char *volatile block = malloc(size);
    char *volatile other = malloc(size);
    free(block);
    free(block);
    free(other);
    return 3;
}
