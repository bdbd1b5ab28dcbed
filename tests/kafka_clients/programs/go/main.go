// Drives a broker with a client in Go: go-clients franz-go|sarama HOST:PORT PREFIX, and
// go-clients franz-go-numbered HOST:PORT TOPIC PARTITIONS, or as outage.go says.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const baseMs = 1_767_225_600_000
const wait = 20 * time.Second

type header struct {
	key   string
	value []byte
}

type record struct {
	key, value  []byte
	headers     []header
	timestampMs int64
}

type namedCase struct {
	name string
	run  func() error
}

// By name; each client's file adds its own.
var clients = map[string]func(bootstrap, prefix string) []namedCase{}

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

func records() []record {
	return []record{
		{[]byte("k0"), []byte("v0"), []header{{"trace", []byte("7")}, {"empty", []byte{}}, {"null", nil}, {"trace", []byte("8")}}, baseMs},
		{nil, []byte("plain"), nil, baseMs + 1000},
		{[]byte("k2"), nil, nil, baseMs + 2000},
		{[]byte{}, []byte{}, []header{{"h", []byte("é")}}, baseMs + 3000},
		{[]byte("k4"), []byte(strings.Repeat("é", 500)), nil, baseMs + 4000},
	}
}

func numbered(count int) []record {
	made := make([]record, count)
	for number := range made {
		made[number] = record{nil, []byte(fmt.Sprint(number)), nil, baseMs}
	}
	return made
}

func main() {
	if os.Args[1] == "outage" {
		ridesOutOutage(os.Args[2:])
		return
	}
	client, bootstrap, prefix := os.Args[1], os.Args[2], os.Args[3]
	if client == "franz-go-numbered" {
		writeNumbered(bootstrap, prefix, os.Args[4])
		return
	}
	cases, known := clients[client]
	if !known {
		panic("no client " + client)
	}
	out := json.NewEncoder(os.Stdout)
	for _, one := range cases(bootstrap, prefix) {
		began := time.Now()
		told := map[string]any{"case": one.name, "error": nil}
		if err := one.run(); err != nil {
			told["error"] = err.Error()
		}
		told["seconds"] = time.Since(began).Seconds()
		if err := out.Encode(told); err != nil {
			panic(err)
		}
	}
}

func expect(seen, wanted any) error {
	if fmt.Sprint(seen) != fmt.Sprint(wanted) {
		return fmt.Errorf("expected %v, saw %v", wanted, seen)
	}
	return nil
}

func expectRecords(seen, wanted []record) error {
	if len(seen) != len(wanted) {
		return fmt.Errorf("expected %d records, saw %d", len(wanted), len(seen))
	}
	for at, one := range seen {
		other := wanted[at]
		same := equal(one.key, other.key) && equal(one.value, other.value) &&
			one.timestampMs == other.timestampMs && len(one.headers) == len(other.headers)
		for number := 0; same && number < len(one.headers); number++ {
			same = one.headers[number].key == other.headers[number].key &&
				equal(one.headers[number].value, other.headers[number].value)
		}
		if !same {
			return fmt.Errorf("record %d: expected %+v, saw %+v", at, other, one)
		}
	}
	return nil
}

// Kafka answers a change before its brokers have heard of it.
func soon(look func() error) error {
	giveUpAt := time.Now().Add(wait)
	for {
		err := look()
		if err == nil || time.Now().After(giveUpAt) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func equal(one, other []byte) bool {
	return bytes.Equal(one, other) && (one == nil) == (other == nil)
}

func offsetsOf(count int) []int64 {
	wanted := make([]int64, count)
	for at := range wanted {
		wanted[at] = int64(at)
	}
	return wanted
}

func firstError(errors ...error) error {
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}
