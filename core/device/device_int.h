/* device_int.h - how device.c reaches each kind; for this folder only. */
#pragma once
#include "device.h"

mc_status mc_device_open_cpu(int index, struct mc_device *d, struct mc_err *err);
