        .text
        .globl first
        .type first, @function
first:  lea 1(%rdi), %eax
        ret
        .skip 6 << 20, 0x90
        .globl last
        .type last, @function
last:   lea 2(%rdi), %eax
        ret
        .section .rodata
        .globl constants
        .type constants, @object
        .size constants, 4 << 20
constants:
        .skip 4 << 20, 7
        .section .note.GNU-stack, "", @progbits
