"""SUMMA."""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value


class Summa(Primitive):
    axes = ("r", "c")
    label = "S"

    def forward(self, r, c, t, s):
        return dict(M=r, N=t, K=c)

    def home(self, tensor, r, c, s):
        return {"I": dict(M=r, N=c), "W": dict(N=r, K=c), "O": dict(M=r, K=c)}[tensor]

class Tesseract(Primitive):
    axes = {"r":"q","c":"q","e":"d"}
    label = "T"

    def forward(self, r, c, e, t, q, d):
        return dict(M=(e,r), N=t, K=c)

    def home(self, tensor, r, c, e, q, d):
        return {"I": dict(M=(e,r), N=c), "W": dict(N=r, K=c), "O": dict(M=(e,r), K=c)}[tensor]

class ThreeD(Primitive):
    axes = ("i","j","l")
    def steps(self,s): return 1
    def forward(self,i,j,l,t,s): return dict(M=i,N=l,K=j)
    def home(self,tensor,i,j,l,s):
        return {"I": dict(M=(i,j), N=l), "W": dict(N=l, K=(j,i)), "O": dict(M=(i,l), K=j)}[tensor]

class SP(Primitive):
    axes=("d",)
    def steps(self,s): return 1
    def forward(self,d,t,s): return dict(K=d)
    def home(self,tensor,d,s):
        return {"I": dict(M=d), "W": dict(K=d), "O": dict(K=d)}[tensor]

class SPRow(Primitive):
    axes=("d",)
    def steps(self,s): return 1
    def forward(self,d,t,s): return dict(N=d)
    def home(self,tensor,d,s):
        return {"I": dict(N=d), "W": dict(N=d), "O": dict(M=d)}[tensor]

class OStays(Primitive):
    axes=("r","c")
    def forward(self,r,c,t,s): return dict(M=r,N=(r+c+t)%s,K=c)
    def home(self,tensor,r,c,s):
        return {"I": dict(M=r,N=(r+c)%s), "W": dict(N=(r+c)%s,K=c), "O": dict(M=r,K=c)}[tensor]
