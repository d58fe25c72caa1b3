// The kernels that read blocks, in one unit: they are made of the same templates.
#include "../csrc/experts_cpu.cpp"
#include "../csrc/matmul_cpu.cpp"
