#include "compressor.h"
