// Writes to address 0, which is not mapped.
#include <stdlib.h>

int where;

int main(void) {
    char *block = malloc(100000);
    where = 11;
    *(volatile char *)NULL = block[3];
    return 0;
}
