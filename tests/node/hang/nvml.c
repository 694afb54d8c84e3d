/* A stand-in for libnvidia-ml.so.1. The file in NVML_TABLE has a line for each GPU:
   busy moving milliwatts celsius reasons pid..., with -1 for what it does not tell; "lost"; "hangs". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, INSUFFICIENT_SIZE = 7, LOST = 15 };
enum { BUSY, MOVING, POWER, TEMPERATURE, REASONS, FIRST_PID, MOST = 300 };
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned instance, part; };

static int initialized;

static int read_row(unsigned wanted, long long *values)
{
    char line[4096], *at = line, *end;
    int count = 0;
    FILE *table = initialized ? fopen(getenv("NVML_TABLE"), "r") : NULL;
    if (!table)
        return -UNINITIALIZED;
    for (unsigned row = 0; row <= wanted; row++)
        if (!fgets(line, sizeof line, table))
            return -INVALID;
    fclose(table);
    if (!strncmp(line, "hangs", 5))
        for (;;)
            pause();
    if (!strncmp(line, "lost", 4))
        return -LOST;
    while (count < MOST && (values[count] = strtoll(at, &end, 10), end != at)) {
        at = end;
        count++;
    }
    return count;
}

static int value(void *device, int which, long long *found)
{
    long long values[MOST];
    int count = read_row((unsigned)(size_t)device - 1, values);
    if (count < 0)
        return -count;
    *found = values[which];
    return *found < 0 ? NOT_SUPPORTED : SUCCESS;
}

static int as_unsigned(void *device, int which, unsigned *found)
{
    long long number;
    int code = value(device, which, &number);
    if (!code)
        *found = (unsigned)number;
    return code;
}

int nvmlInit_v2(void) { initialized = 1; return access(getenv("NVML_TABLE"), R_OK) ? 9 : SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    FILE *table = fopen(getenv("NVML_TABLE"), "r");
    int letter;
    *count = 0;
    while ((letter = fgetc(table)) != EOF)
        *count += letter == '\n';
    fclose(table);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    long long values[MOST];
    int count = read_row(index, values);
    *device = (void *)(size_t)(index + 1);
    return count < 0 ? -count : SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    snprintf(uuid, size, "GPU-%u", (unsigned)(size_t)device - 1);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *found)
{
    int code = as_unsigned(device, BUSY, &found->gpu);
    return code ? code : as_unsigned(device, MOVING, &found->memory);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *found)
{
    return sensor ? INVALID : as_unsigned(device, TEMPERATURE, found);
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *found)
{
    *found = (struct memory){80ULL << 30, 9ULL << 30, 71ULL << 30};
    return device ? SUCCESS : INVALID;
}

#ifdef OLD
#define REASONS_NAME nvmlDeviceGetCurrentClocksThrottleReasons
#define PROCESSES_NAME nvmlDeviceGetComputeRunningProcesses_v2
#else
#define REASONS_NAME nvmlDeviceGetCurrentClocksEventReasons
#define PROCESSES_NAME nvmlDeviceGetComputeRunningProcesses_v3
int nvmlDeviceGetPowerUsage(void *device, unsigned *found) { return as_unsigned(device, POWER, found); }
#endif

int REASONS_NAME(void *device, unsigned long long *found)
{
    long long number;
    int code = value(device, REASONS, &number);
    if (!code)
        *found = (unsigned long long)number;
    return code;
}

int PROCESSES_NAME(void *device, unsigned *count, struct process *found)
{
    long long values[MOST];
    int known = read_row((unsigned)(size_t)device - 1, values) - FIRST_PID;
    if (known > 0 && values[FIRST_PID] < 0)
        return NOT_SUPPORTED;
    if (known > (int)*count)
        return INSUFFICIENT_SIZE;
    for (*count = 0; (int)*count < known; ++*count)
        found[*count] = (struct process){(unsigned)values[FIRST_PID + *count], -1ULL, -1U, -1U};
    return SUCCESS;
}
