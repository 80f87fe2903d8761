// Says hello.
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    char *block = malloc(100);
    puts(block ? "hello from a child" : "no memory");
    return 7;
}
